import { expect, test } from "bun:test";
import { createMetrics } from "../../../shared/platform/metrics/metrics.ts";
import { createLimits } from "./limits.ts";

const LARGE_BYTES = 4_194_304;
const always = () => true;

/** The limits of a gateway, and reads that stay in Postgres until they are ended. */
function watched() {
  const limits = createLimits(createMetrics());
  const begun: string[] = [];
  const ends = new Map<string, () => void>();
  const read = (projectNo: number, bytesMax: number, name: string) =>
    limits.readStore(projectNo, always, bytesMax, () => {
      begun.push(name);
      const { promise, resolve } = Promise.withResolvers<{ status: number; text: string }>();
      ends.set(name, () => resolve({ status: 200, text: "" }));
      return promise;
    });
  return { read, begun, end: (name: string) => ends.get(name)?.() };
}

test("a large read that waits for its own project keeps no large read of another project waiting", async () => {
  const { read, begun, end } = watched();
  const reads = [read(1, 0, "stuck"), read(1, 0, "stuck too"), read(1, LARGE_BYTES, "large behind")];
  reads.push(read(2, LARGE_BYTES, "large beside"));
  await Bun.sleep(0);
  expect(begun).toEqual(["stuck", "stuck too", "large beside"]);
  end("stuck");
  await Bun.sleep(0);
  expect(begun).not.toContain("large behind");
  end("large beside");
  await Bun.sleep(0);
  expect(begun).toContain("large behind");
  for (const name of begun) end(name);
  await Promise.all(reads);
});

test("small reads go past large ones, of which one is in Postgres at once and the projects take turns", async () => {
  const { read, begun, end } = watched();
  const reads = ["large", "second", "third"].map((name) => read(1, LARGE_BYTES, name));
  reads.push(read(2, LARGE_BYTES, "other's large"), read(1, 0, "small"), read(2, 0, "other's small"));
  await Bun.sleep(0);
  expect(begun).toEqual(["large", "small", "other's small"]);
  for (const name of ["second", "other's large", "third"]) {
    const [last] = begun.filter((it) => !it.includes("small")).slice(-1);
    end(last ?? "");
    await Bun.sleep(0);
    expect(begun.at(-1)).toBe(name);
  }
  for (const name of begun) end(name);
  await Promise.all(reads);
});
