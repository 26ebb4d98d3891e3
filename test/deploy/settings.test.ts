import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "./manifests.ts";
import { settingNames } from "./settings.ts";

test("deploy/README.md has a line for each setting that is read, and for no other", () => {
  const page = readFileSync(join(DEPLOY, "README.md"), "utf8");
  const table = /^## Settings$(.*?)^## /ms.exec(page)?.[1] ?? "";
  const named = [...table.matchAll(/^\| `(\w+)` /gm)].map(([, name]) => name);
  expect(named.toSorted()).toEqual([...settingNames()].toSorted());
});
