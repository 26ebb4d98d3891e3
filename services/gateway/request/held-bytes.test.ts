import { expect, test } from "bun:test";
import type { ReadyAnswer } from "./answer.ts";
import { createHeldBytes } from "./held-bytes.ts";

const MAX = { ofProject: 100, ofAll: 150, always: 10 };

/** An answer that is held until its client takes it. */
function untaken(byteCount: number) {
  const { promise: taken, resolve: take } = Promise.withResolvers<void>();
  const large = { byteCount, stream: new ReadableStream<Uint8Array>(), taken, drop: take };
  const answer: ReadyAnswer = { status: 200, text: "", large };
  return { answer, take };
}

const small: ReadyAnswer = { status: 200, text: "{}" };

test("bytes of answers that nobody has taken stay held, for the project and for all", async () => {
  const held = createHeldBytes(MAX);
  const hold = (projectNo: number, bytes: number, answer = small) =>
    held.hold(projectNo, bytes, async () => answer);
  const first = untaken(90);
  await hold(1, 100, first.answer);
  expect(hold(1, 11)).rejects.toThrow("overloaded");
  expect(await hold(1, 10)).toBe(small);
  expect(await hold(1, 0)).toBe(small);
  const second = untaken(60);
  await hold(2, 60, second.answer);
  expect(hold(3, 11)).rejects.toThrow("overloaded");
  // Every project may hold a little, whatever the others hold.
  expect(await hold(3, 10)).toBe(small);
  first.take();
  await first.answer.large?.taken;
  expect(await hold(1, 90)).toBe(small);
});

test("bytes are free again after a failure, and those that an answer did not need", async () => {
  const held = createHeldBytes(MAX);
  const failing = held.hold(1, 100, () => Promise.reject(new Error("it broke")));
  expect(failing).rejects.toThrow("it broke");
  await failing.catch(() => undefined);
  const larger = untaken(120);
  await held.hold(1, 0, async () => larger.answer);
  expect(held.hold(1, 1, async () => small)).rejects.toThrow("overloaded");
  larger.take();
  await larger.answer.large?.taken;
  expect(await held.hold(1, 100, async () => small)).toBe(small);
});
