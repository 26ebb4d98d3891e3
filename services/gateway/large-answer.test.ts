import { expect, test } from "bun:test";
import { pace } from "./large-answer.ts";

const LARGE = 65_536;
const paced = (text: string) => {
  const { large } = pace({ status: 200, text });
  if (large === undefined) throw new Error("it is not large");
  let isTaken = false;
  void large.taken.then(() => {
    isTaken = true;
  });
  return { ...large, isTaken: () => isTaken };
};

test("a small answer is sent as it is", () => {
  const answer = { status: 200, text: "x".repeat(LARGE) };
  expect(pace(answer)).toBe(answer);
});

test("a large answer arrives whole, in whichever characters it is", async () => {
  for (const filler of ["x", "é", "x😀", "😀", "\n"]) {
    const text = filler.repeat(200_000);
    const { stream, isTaken } = paced(text);
    expect(await new Response(stream).text()).toBe(text);
    expect(isTaken()).toBe(true);
  }
});

test("a large answer is taken once its last piece is, and not before", async () => {
  // One piece is made ahead of the reader.
  const { stream, isTaken } = paced("x".repeat(4 * LARGE));
  const reader = stream.getReader();
  for (let piece = 0; piece < 2; piece++) expect((await reader.read()).value?.length).toBe(LARGE);
  await new Promise(setImmediate);
  expect(isTaken()).toBe(false);
  while (!(await reader.read()).done);
  expect(isTaken()).toBe(true);
});

test("a client that goes away has taken all that it will take", async () => {
  const { stream, taken } = paced("x".repeat(3 * LARGE));
  await stream.cancel();
  await taken;
});
