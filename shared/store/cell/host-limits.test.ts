import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { testCause } from "../../../test/support/cause.ts";
import { listAudit } from "../resources/audit.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { clearHostLimit, listHostLimits, setHostLimit } from "./host-limits.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

describe("a host's limit", () => {
  test("is listed once it is set, is replaced by the next one, and is gone once it is cleared", async () => {
    const begunAt = Date.now();
    await setHostLimit(store.db, { host: "b.example", requests: 5 }, testCause());
    await setHostLimit(store.db, { host: "a.example", requests: 0 }, testCause());
    await setHostLimit(store.db, { host: "b.example", requests: 3 }, testCause());
    const limits = await listHostLimits(store.db);
    expect(limits).toMatchObject([
      { host: "a.example", requests: 0 },
      { host: "b.example", requests: 3 },
    ]);
    expect(limits[0]?.limitedAt).toBeGreaterThan(begunAt - 5_000);
    expect(limits[0]?.limitedAt).toBeLessThan(Date.now() + 5_000);
    expect(await clearHostLimit(store.db, "b.example", testCause())).toBe(true);
    expect(await clearHostLimit(store.db, "b.example", testCause())).toBe(false);
    expect((await listHostLimits(store.db)).map(({ host }) => host)).toEqual(["a.example"]);
  });

  test("is audited with the operator when it changes, and not when the same limit is set again", async () => {
    const host = "audited.example";
    for (const requests of [4, 4, 2]) await setHostLimit(store.db, { host, requests }, testCause());
    for (let time = 0; time < 2; time++) await clearHostLimit(store.db, host, testCause());
    const entries = await listAudit(store.db, { projectNo: null, beforeId: null, limit: 100 });
    const ours = entries.filter(({ subject }) => subject === host);
    expect(ours.map(({ action, detail }) => ({ action, detail })).reverse()).toEqual([
      { action: "host.limit", detail: { requests: 4 } },
      { action: "host.limit", detail: { requests: 2 } },
      { action: "host.clear", detail: null },
    ]);
    expect(ours.every(({ by }) => by.kind === "operator")).toBe(true);
  });
});
