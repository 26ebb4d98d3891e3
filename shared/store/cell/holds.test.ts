import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { testCause } from "../../../test/support/cause.ts";
import { PROJECT_PREFIX, uuidToId } from "../../domain/ids.ts";
import { REGIONS } from "../../domain/scope.ts";
import { startStore, type TestStore, WAYS } from "../test-support.ts";
import { listHeldRegions, setProjectHeld, setRegionsHeld } from "./holds.ts";

let store: TestStore;
let nodeId: number;
beforeEach(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterEach(() => store.stop());

describe.each(WAYS)("a held region, %s", (_name, { claim }) => {
  test("has nothing claimed until it is resumed, while other regions go on", async () => {
    const project = await store.addProject();
    const [east = ""] = await store.addJobs(project, 1);
    const [west = ""] = await store.addJobs(project, 1, { region: "us-west" });
    expect(await setRegionsHeld(store.db, ["us-east"], true, testCause())).toEqual(["us-east"]);
    expect(await setRegionsHeld(store.db, ["us-east"], true, testCause())).toEqual([]);
    const claims = [store.claimOf(project, east), store.claimOf(project, west, { region: "us-west" })];
    const kinds = (await claim(store.db, nodeId, claims)).map(({ kind }) => kind);
    expect(kinds).toEqual(["blocked", "granted"]);
    expect((await listHeldRegions(store.db)).map(({ region }) => region)).toEqual(["us-east"]);
    expect(await setRegionsHeld(store.db, REGIONS, false, testCause())).toEqual(["us-east"]);
    expect(await claim(store.db, nodeId, claims.slice(0, 1))).toMatchObject([{ kind: "granted" }]);
    expect(
      await store.query("SELECT action, subject FROM audit_entries WHERE action LIKE 'region%' ORDER BY id"),
    ).toEqual([
      { action: "region.hold", subject: "us-east" },
      { action: "region.resume", subject: REGIONS.join(",") },
    ]);
  });
});

test("holding a project twice changes nothing, and holding an unknown project is refused", async () => {
  const project = await store.addProject();
  const [row] = await store.query<{ id: string }>("SELECT id FROM projects WHERE no = $1", [project]);
  const id = `prj_${"0".repeat(26)}`;
  expect(await setProjectHeld(store.db, id, true, testCause())).toBe(false);
  const known = uuidToId(PROJECT_PREFIX, row?.id ?? "");
  for (const held of [true, true, false]) {
    expect(await setProjectHeld(store.db, known, held, testCause())).toBe(true);
    expect(await store.query("SELECT held FROM flows WHERE project_no = $1", [project])).toEqual([{ held }]);
  }
  expect(
    await store.query(
      "SELECT count(*)::int AS count FROM audit_entries WHERE action IN ('project.hold', 'project.resume')",
    ),
  ).toEqual([{ count: 2 }]);
});
