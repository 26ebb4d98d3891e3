import { expect, test } from "bun:test";
import { prepareAnswer } from "./large-answer.ts";

const LARGE = 65_536;
const PROJECT = 1;
const prepareLarge = async (text: string | string[]) => {
  const { large } = await prepareAnswer({ status: 200, text }, PROJECT);
  if (large === undefined) throw new Error("it is not large");
  let isTaken = false;
  void large.taken.then(() => {
    isTaken = true;
  });
  return { ...large, isTaken: () => isTaken };
};

test("a small answer is sent as it is, its parts joined", async () => {
  const answer = { status: 200, text: "x".repeat(LARGE) };
  expect(await prepareAnswer(answer, PROJECT)).toEqual(answer);
  expect(await prepareAnswer({ status: 200, text: ["[", "1", "]"] }, PROJECT)).toEqual({
    status: 200,
    text: "[1]",
  });
});

test("a large answer of any characters arrives complete", async () => {
  for (const filler of ["x", "é", "x😀", "😀", "\n"]) {
    const text = filler.repeat(200_000);
    for (const given of [text, [text.slice(0, 6), text.slice(6, 70_002), text.slice(70_002)]]) {
      const { stream, isTaken, byteCount } = await prepareLarge(given);
      expect(await new Response(stream).text()).toBe(text);
      expect(isTaken()).toBe(true);
      expect(byteCount).toBe(Buffer.byteLength(text));
    }
  }
});

test("a large answer counts as taken when its last piece is taken, and not before", async () => {
  // One piece is made ahead of the reader.
  const { stream, isTaken } = await prepareLarge("x".repeat(4 * LARGE));
  const reader = stream.getReader();
  for (let piece = 0; piece < 2; piece++) expect((await reader.read()).value?.length).toBe(LARGE);
  await new Promise(setImmediate);
  expect(isTaken()).toBe(false);
  while (!(await reader.read()).done);
  expect(isTaken()).toBe(true);
});

test("an answer counts as taken when its client goes away", async () => {
  const { stream, taken } = await prepareLarge("x".repeat(3 * LARGE));
  await stream.cancel();
  await taken;
});

test("a dropped answer sends nothing more", async () => {
  const { stream, taken, drop } = await prepareLarge("x".repeat(3 * LARGE));
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
