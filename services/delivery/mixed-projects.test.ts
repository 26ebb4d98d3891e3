import { expect, test } from "bun:test";
import { MixedProjects } from "./mixed-projects.ts";

test("a project is mixed once it has had jobs of both kinds, and no other project is", () => {
  const mixed = new MixedProjects();
  mixed.note(1, "keyed");
  mixed.note(2, "ordinary");
  expect([mixed.has(1), mixed.has(2)]).toEqual([false, false]);
  mixed.note(1, "ordinary");
  expect([mixed.has(1), mixed.has(2), mixed.has(3)]).toEqual([true, false, false]);
});

test("a project is mixed no longer once it has had no jobs of one kind for two seconds", () => {
  let now = 0;
  const mixed = new MixedProjects(() => now);
  const noteAt = (at: number, kind: "keyed" | "ordinary") => {
    now = at;
    mixed.note(1, kind);
    return mixed.has(1);
  };
  expect(noteAt(100, "keyed")).toBe(false);
  expect(noteAt(900, "ordinary")).toBe(true);
  expect(noteAt(1_500, "ordinary")).toBe(true);
  expect(noteAt(2_600, "ordinary")).toBe(false);
  expect(noteAt(2_700, "keyed")).toBe(true);
  // All that was noted is older than two seconds.
  expect(noteAt(9_000, "keyed")).toBe(false);
});
