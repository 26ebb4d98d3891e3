import { expect, test } from "bun:test";
import { pace } from "./large-answer.ts";

const LARGE = 65_536;
const PROJECT = 1;
const paced = async (text: string | string[]) => {
  const { large } = await pace({ status: 200, text }, PROJECT);
  if (large === undefined) throw new Error("it is not large");
  let isTaken = false;
  void large.taken.then(() => {
    isTaken = true;
  });
  return { ...large, isTaken: () => isTaken };
};

test("a small answer is sent as it is, and put together where it comes in parts", async () => {
  const answer = { status: 200, text: "x".repeat(LARGE) };
  expect(await pace(answer, PROJECT)).toEqual(answer);
  expect(await pace({ status: 200, text: ["[", "1", "]"] }, PROJECT)).toEqual({ status: 200, text: "[1]" });
});

test("a large answer arrives whole, in whichever characters it is", async () => {
  for (const filler of ["x", "é", "x😀", "😀", "\n"]) {
    const text = filler.repeat(200_000);
    for (const given of [text, [text.slice(0, 6), text.slice(6, 70_002), text.slice(70_002)]]) {
      const { stream, isTaken, byteCount } = await paced(given);
      expect(await new Response(stream).text()).toBe(text);
      expect(isTaken()).toBe(true);
      expect(byteCount).toBe(Buffer.byteLength(text));
    }
  }
});

test("a large answer is taken once its last piece is, and not before", async () => {
  // One piece is made ahead of the reader.
  const { stream, isTaken } = await paced("x".repeat(4 * LARGE));
  const reader = stream.getReader();
  for (let piece = 0; piece < 2; piece++) expect((await reader.read()).value?.length).toBe(LARGE);
  await new Promise(setImmediate);
  expect(isTaken()).toBe(false);
  while (!(await reader.read()).done);
  expect(isTaken()).toBe(true);
});

test("a client that goes away has taken all that it will take", async () => {
  const { stream, taken } = await paced("x".repeat(3 * LARGE));
  await stream.cancel();
  await taken;
});

test("what is dropped is given to nobody", async () => {
  const { stream, taken, drop } = await paced("x".repeat(3 * LARGE));
  // One piece was made ahead of the reader.
  await new Promise(setImmediate);
  drop();
  await taken;
  const reader = stream.getReader();
  expect((await reader.read()).value?.length).toBe(LARGE);
  const next = reader.read().then(() => "more");
  expect(await Promise.race([next, new Promise((resolve) => setImmediate(resolve, "nothing"))])).toBe(
    "nothing",
  );
});
