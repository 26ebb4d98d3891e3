import { expect, test } from "bun:test";
import { createGate } from "./gate.ts";

const turn = () => new Promise((resolve) => setImmediate(resolve));

test("who is alone waits for all that has begun within, and keeps out what comes meanwhile", async () => {
  const gate = createGate();
  const told: string[] = [];
  const ends = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const within = ends.map(({ promise }, index) =>
    gate.within(async () => {
      await promise;
      told.push(`within ${index}`);
    }),
  );
  const leap = Promise.withResolvers<void>();
  const alone = gate.alone(async () => {
    told.push("alone");
    await leap.promise;
  });
  const after = gate.within(async () => void told.push("after"));
  ends[1]?.resolve();
  await within[1];
  await turn();
  expect(told).toEqual(["within 1"]);
  ends[0]?.resolve();
  await within[0];
  await turn();
  expect(told).toEqual(["within 1", "within 0", "alone"]);
  leap.resolve();
  await Promise.all([alone, after]);
  expect(told).toEqual(["within 1", "within 0", "alone", "after"]);
});

test("an error passes through, and the gate is open again", async () => {
  const gate = createGate();
  const fail = () => Promise.reject(new Error("over"));
  await expect(gate.within(fail)).rejects.toThrow("over");
  await expect(gate.alone(fail)).rejects.toThrow("over");
  expect(await gate.within(async () => "open")).toBe("open");
  expect(await gate.alone(async () => "alone")).toBe("alone");
});
