import { afterAll, beforeAll, expect, test } from "bun:test";
import { BULK_PREFIX, retypeId } from "../../shared/domain/ids.ts";
import { listAudit } from "../../shared/store/resources/audit.ts";
import { createBulk, findBulk } from "../../shared/store/resources/bulk-operations.ts";
import { startStore, type TestStore } from "../../shared/store/test-support.ts";
import { keyCause } from "../../test/support/cause.ts";
import { runCommandLine } from "./command-line.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const admin = async (...words: string[]) => {
  const answer = await runCommandLine(words, { DATABASE_URL: store.url });
  return { ...answer, stdout: answer.stdout.trim() };
};

test("operators list the bulk operations that are not over, and end one", async () => {
  const scope = { projectNo: await store.addProject(), environment: "production" as const };
  const cause = keyCause();
  const id = retypeId(cause.requestId, BULK_PREFIX);
  const filter = { tag: "a" };
  const bulk = { id, action: "cancel" as const, filter, perSecond: 7, dryRun: false, shard: 0 };
  expect(await createBulk(store.db, scope, bulk, cause, null)).toBe("created");
  expect(JSON.parse((await admin("bulk", "list", "--json")).stdout).data).toMatchObject([
    {
      id,
      environment: "production",
      action: "cancel",
      status: "counting",
      per_second: 7,
      matched: null,
      judged: 0,
    },
  ]);
  expect((await admin("bulk", "list")).stdout).toContain(id);
  expect(JSON.parse((await admin("bulk", "abort", id, "--json")).stdout)).toEqual({ id, status: "aborted" });
  expect(await findBulk(store.db, scope, id)).toMatchObject({
    status: "aborted",
    endedAt: expect.any(Number),
  });
  expect(JSON.parse((await admin("bulk", "list", "--json")).stdout)).toEqual({ data: [] });
  const [entry] = await listAudit(store.db, {
    projectNo: null,
    isOfOperators: true,
    beforeId: null,
    limit: 1,
  });
  expect(entry).toMatchObject({ action: "bulk.abort", subject: id });
  for (const refused of [id, "blk_01arz3ndektsv4rrffq69g5fav", "x"]) {
    const answer = await admin("bulk", "abort", refused);
    expect(answer.stdout).toBe("");
    expect(answer.stderr).not.toBe("");
  }
});
