import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { KEYS_MAX } from "../../../shared/domain/key-life.ts";
import { refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway } from "../../support/gateway.ts";
import { fillKeys, keysOf, statusOf } from "./support.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const HOUR_MS = 3_600_000;
/** The API promises a revocation on every gateway within this time. */
const ENDED_MS_MAX = 5_000;
const ASK_EVERY_MS = 50;

const hoursUntil = (instant: string | null) => (Date.parse(instant ?? "") - Date.now()) / HOUR_MS;

/** Expects this gateway to refuse the key at once, and the other one to refuse it from the promised time on. */
async function expectEnded(key: string): Promise<void> {
  const startedAt = performance.now();
  expect(await statusOf(gateway, key)).toBe(401);
  for (;;) {
    const askedAt = performance.now();
    if ((await statusOf(gateway, key, mate.port)) === 401) return;
    if (askedAt - startedAt > ENDED_MS_MAX) throw new Error("the key goes on to work");
    await Bun.sleep(ASK_EVERY_MS);
  }
}

describe("GET /v2/keys", () => {
  test("shows the keys of the environment that live, newest first, page by page", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    const made = [];
    for (const scope of ["read", "jobs", "full"] as const)
      made.push(await keys.create({ scope, name: scope }));
    await keysOf(gateway, project, project.development).create({ scope: "read" });
    await gateway.addKey(project, { expiresAt: new Date(Date.now() - 1) });
    const gone = await keys.create({ scope: "read" });
    await keys.delete(gone.id);
    const { data } = await keys.list();
    expect(data.map(({ name }) => name)).toEqual(["full", "jobs", "read", null]);
    expect(data.slice(0, 3).map(({ id }) => id)).toEqual(made.map(({ id }) => id).reverse());
    const walked = [];
    for await (const { id } of keys.list({ limit: 1 })) walked.push(id);
    expect(walked).toEqual(data.map(({ id }) => id));
  });

  test("shows when a key was last used", async () => {
    const project = await gateway.addProject();
    const own = await gateway.startMate();
    const { id, key } = await keysOf(gateway, project).create({ scope: "read" });
    const usedAt = Date.now();
    expect(await statusOf(gateway, key, own.port)).toBe(200);
    await own.stop();
    const { data } = await keysOf(gateway, project).list();
    const shown = Date.parse(data.find((listed) => listed.id === id)?.last_used_at ?? "");
    expect(shown).toBeGreaterThanOrEqual(usedAt - 1);
    expect(shown).toBeLessThanOrEqual(Date.now());
  });

  test("reads no key that has ended, however many there are", async () => {
    const project = await gateway.addProject();
    await gateway.query(
      `INSERT INTO api_keys (id, project_no, environment, scope, hash, expires_at, revoked_at)
       SELECT gen_random_uuid(), $1, 1, 'read', sha256(('ended ' || n)::bytea), CASE WHEN n % 2 = 0 THEN now() END,
              CASE WHEN n % 2 = 1 THEN now() END
         FROM generate_series(1, 4000) n`,
      [project.no],
    );
    expect((await keysOf(gateway, project).list()).data.length).toBe(1);
    const plan = await gateway.query<{ "QUERY PLAN": string }>(
      `EXPLAIN (ANALYZE, BUFFERS, TIMING OFF)
       SELECT id FROM api_keys WHERE project_no = ${project.no} AND environment = 1 AND revoked_at IS NULL AND expires_at IS NULL
        UNION ALL
       SELECT id FROM api_keys WHERE project_no = ${project.no} AND environment = 1 AND revoked_at IS NULL
          AND expires_at > statement_timestamp()`,
    );
    const text = plan.map((row) => row["QUERY PLAN"]).join("\n");
    expect(text.match(/using api_keys_living|on api_keys_living/gi)?.length).toBe(2);
    expect(text).not.toContain("Rows Removed by Filter");
  });

  test.each(["?limit=0", "?cursor=x", "?scope=full"])("refuses %s", async (query) => {
    const project = await gateway.addProject();
    const answer = await gateway.call("GET", `/v2/keys${query}`, { key: project.production });
    expect(JSON.parse(answer.text).error.code).toBe("invalid_request");
  });
});

describe("POST /v2/keys/{id}/rotate", () => {
  test("makes a successor of the same name, scope and expiry, and both work during the overlap", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    const old = await keys.create({ scope: "jobs", name: "worker", expires_in_hours: 100 });
    const { result: made, answer } = await keys.rotate(old.id, { overlap_hours: 2 }).withAnswer();
    expect(answer.status).toBe(201);
    const { name, scope, expires_at } = old;
    expect(made).toMatchObject({ name, scope, expires_at, last_used_at: null });
    expect([made.id === old.id, made.key === old.key]).toEqual([false, false]);
    const listed = (await keys.list()).data.find(({ id }) => id === old.id);
    expect(hoursUntil(listed?.expires_at ?? null)).toBeCloseTo(2, 1);
    for (const { key } of [old, made]) expect(await statusOf(gateway, key, mate.port)).toBe(200);
  });

  test("overlaps for a day by default, without a body and with an empty one", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    for (const wish of [{}, { body: {} }, { headers: { "Content-Type": "text/plain" } }]) {
      const { id } = await keys.create({ scope: "jobs" });
      const answer = await gateway.call("POST", `/v2/keys/${id}/rotate`, {
        key: project.production,
        ...wish,
      });
      expect(answer.status).toBe(201);
      const listed = (await keys.list()).data.find((key) => key.id === id);
      expect(hoursUntil(listed?.expires_at ?? null)).toBeCloseTo(24, 1);
    }
  });

  test("without an overlap ends the key within 5 s on every gateway, and here at once", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    const old = await keys.create({ scope: "read" });
    for (const port of [gateway.port, mate.port]) expect(await statusOf(gateway, old.key, port)).toBe(200);
    await keys.rotate(old.id, { overlap_hours: 0 });
    await expectEnded(old.key);
    expect((await keys.list()).data.some(({ id }) => id === old.id)).toBe(false);
    await refusalOf(keys.rotate(old.id), "resource_not_found");
  });

  test("keeps an expiry that comes before the overlap's end, and is never refused for the last key", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    const soon = await keys.create({ scope: "jobs", expires_in_hours: 1 });
    expect(await keys.rotate(soon.id, { overlap_hours: 72 })).toMatchObject({ expires_at: soon.expires_at });
    const own = (await keys.list()).data.find(({ name, scope }) => name === null && scope === "full");
    const successor = await keys.rotate(own?.id ?? "", { overlap_hours: 0 });
    expect(await statusOf(gateway, project.production)).toBe(401);
    expect(await statusOf(gateway, successor.key)).toBe(200);
  });

  test("gives nobody a key that outlives their own", async () => {
    const project = await gateway.addProject();
    const { key } = await gateway.addKey(project, { expiresAt: new Date(Date.now() + HOUR_MS) });
    const { id } = await keysOf(gateway, project).create({ scope: "full" });
    const before = await gateway.countRows();
    await refusalOf(keysOf(gateway, project, key).rotate(id), "invalid_request");
    expect(await gateway.countRows()).toEqual(before);
  });

  test("is refused where the overlap would be one key too many", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    const { id } = await keys.create({ scope: "read" });
    await fillKeys(gateway, project, KEYS_MAX - 2);
    await refusalOf(keys.rotate(id, { overlap_hours: 1 }), "plan_limit_exceeded");
    await keys.rotate(id, { overlap_hours: 0 });
  });

  test.each([
    [{ overlap_hours: -1 }, "overlap_hours"],
    [{ overlap_hours: 73 }, "overlap_hours"],
    [{ overlap_hours: "1" }, "overlap_hours"],
    [{ overlap_hours: null }, "overlap_hours"],
    [{ overlapHours: 1 }, "overlapHours"],
  ])("refuses %j, but of an unknown key it says only that", async (body, param) => {
    const project = await gateway.addProject();
    const { id } = await keysOf(gateway, project).create({ scope: "read" });
    const before = await gateway.countRows();
    const rotate = (path: string) => gateway.call("POST", path, { key: project.production, body });
    readRefusal(await rotate(`/v2/keys/${id}/rotate`), "invalid_request", param);
    readRefusal(await rotate(`/v2/keys/key_${"0".repeat(26)}/rotate`), "resource_not_found");
    expect(await gateway.countRows()).toEqual(before);
  });
});

describe("DELETE /v2/keys/{id}", () => {
  test("ends a key within 5 s on every gateway, and here at once", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    const { id, key } = await keys.create({ scope: "jobs" });
    for (const port of [gateway.port, mate.port]) expect(await statusOf(gateway, key, port)).toBe(200);
    expect(await keys.delete(id)).toEqual({ id, deleted: true });
    await expectEnded(key);
    await refusalOf(keys.delete(id), "resource_not_found");
  });

  test("refuses the environment's last key of scope full, and not its last but one", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    await keys.create({ scope: "jobs" });
    await gateway.addKey(project, { expiresAt: new Date(Date.now() - 1) });
    const other = await keys.create({ scope: "full", expires_in_hours: 1 });
    const [own] = (await keys.list()).data.filter(
      ({ name, expires_at, scope }) => name === null && expires_at === null && scope === "full",
    );
    // The expiring key counts, so the project's first key may be deleted.
    await keys.delete(own?.id ?? "");
    const before = await gateway.countRows();
    await refusalOf(keysOf(gateway, project, other.key).delete(other.id), "invalid_request");
    expect(await gateway.countRows()).toEqual(before);
    expect(await statusOf(gateway, other.key)).toBe(200);
  });

  test("leaves one of two keys that delete each other at once", async () => {
    for (let round = 0; round < 10; round++) {
      const project = await gateway.addProject();
      const { id, key } = await keysOf(gateway, project).create({ scope: "full" });
      const [first] = (await keysOf(gateway, project).list()).data.filter((listed) => listed.id !== id);
      // Each gateway has cached its key by now, so its check lets the request pass even if the other has ended the key.
      await gateway.call("GET", "/v2/project", { key, port: mate.port });
      const answers = await Promise.all([
        gateway.call("DELETE", `/v2/keys/${id}`, { key: project.production }),
        gateway.call("DELETE", `/v2/keys/${first?.id}`, { key, port: mate.port }),
      ]);
      const [done, refused] = answers.map(({ status }) => status).sort();
      expect(done).toBe(200);
      // The later deletion finds its own key deleted, and is answered 401, if the earlier one was done before it began.
      expect([400, 401]).toContain(refused ?? 0);
    }
  });
});
