import { expect, test } from "bun:test";
import { nextTurn } from "./sliced-work.ts";

const PROJECT = 1;
const OTHER_PROJECT = 2;

test("each turn of the event loop has one slice, and the works that wait take turns", async () => {
  const slices: { turn: number; who: number }[] = [];
  let turn = 0;
  let isOver = false;
  const count = () => {
    turn++;
    if (!isOver) setImmediate(count);
  };
  setImmediate(count);
  const work = async (who: number) => {
    for (let slice = 0; slice < 5; slice++) {
      await nextTurn(PROJECT);
      slices.push({ turn, who });
    }
  };
  await Promise.all([0, 1, 2, 3].map(work));
  isOver = true;
  expect(new Set(slices.map((slice) => slice.turn)).size).toBe(slices.length);
  expect(slices.map(({ who }) => who)).toEqual(Array.from({ length: 20 }, (_, n) => n % 4));
  // Work that comes while none waits has the next turn.
  await nextTurn(PROJECT);
});

test("the projects take turns, however many slices each of them wants", async () => {
  const slices: string[] = [];
  const work = async (projectNo: number) => {
    await nextTurn(projectNo);
    slices.push(projectNo === PROJECT ? "many" : "one");
  };
  const many = Array.from({ length: 100 }, () => work(PROJECT));
  await Promise.all([...many, work(OTHER_PROJECT)]);
  expect(slices.indexOf("one")).toBe(1);
  expect(slices).toHaveLength(101);
});
