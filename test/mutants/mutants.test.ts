import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { MUTANTS } from "./mutants.ts";

const root = join(import.meta.dir, "../..");

test("each fault has a name of its own, and its text stands once in its file", () => {
  expect(new Set(MUTANTS.map(({ name }) => name)).size).toBe(MUTANTS.length);
  const astray = MUTANTS.filter(
    ({ file, from }) => readFileSync(join(root, file), "utf8").split(from).length !== 2,
  );
  expect(astray.map(({ name, file }) => `${file}: ${name}`)).toEqual([]);
});

test("each fault names a test file that is there", () => {
  const missing = MUTANTS.filter(({ caughtBy }) => !existsSync(join(root, caughtBy)));
  expect(missing.map(({ name, caughtBy }) => `${caughtBy}: ${name}`)).toEqual([]);
});
