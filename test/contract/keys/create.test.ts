import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyEnvironment } from "../../../shared/domain/key.ts";
import { KEYS_MAX } from "../../../shared/domain/key-life.ts";
import { revokeKey } from "../../../shared/store/resources/keys.ts";
import { testCause } from "../../support/cause.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, TARGET_URL, type TestGateway } from "../../support/gateway.ts";
import { fillKeys, keysOf, statusOf } from "./support.ts";

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());

const HOUR_MS = 3_600_000;

describe("POST /v2/keys", () => {
  test("makes a key of the same project and environment, which works at once, and shows it this once", async () => {
    const project = await gateway.addProject();
    for (const environment of ["development", "production"] as const) {
      const keys = keysOf(gateway, project, project[environment]);
      const { result: made, answer } = await keys.create({ name: "Schön", scope: "full" }).withAnswer();
      expect(answer.status).toBe(201);
      expect(Object.keys(made)).toEqual([
        ...["id", "name", "scope", "created_at", "last_used_at", "expires_at", "key"],
      ]);
      expect(made).toMatchObject({ name: "Schön", scope: "full", last_used_at: null, expires_at: null });
      expect(keyEnvironment(made.key)).toBe(environment);
      expect(await clientOf(gateway, made.key).project.get()).toMatchObject({ id: project.id, environment });
      const { data } = await keys.list();
      const { key, ...shown } = made;
      expect(data.find(({ id }) => id === made.id)).toEqual(shown);
      expect(JSON.stringify(data)).not.toContain(key);
    }
  });

  test("keeps only the hash of the key", async () => {
    const project = await gateway.addProject();
    const { id, key } = await keysOf(gateway, project).create({ scope: "jobs" });
    const [row] = await gateway.query<{ row: string }>(
      "SELECT k::text AS row FROM api_keys k WHERE hash = sha256($1::bytea) AND scope = 'jobs'",
      [Buffer.from(key)],
    );
    expect(row?.row).not.toContain(key.slice(9));
    expect(id).toStartWith("key_");
  });

  test("takes a name of up to 100 characters, or none", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    expect(await keys.create({ scope: "read" })).toMatchObject({ name: null });
    expect(await keys.create({ scope: "read", name: "😀".repeat(100) })).toMatchObject({
      name: "😀".repeat(100),
    });
    for (const name of ["", " ", "x".repeat(101), "a\nb", "\ud800"]) {
      await refusalOf(keys.create({ scope: "read", name }), "invalid_request", "name");
    }
  });

  test.each([
    [{ name: "a" }, "scope"],
    [{ scope: null }, "scope"],
    [{ scope: "admin" }, "scope"],
    [{ scope: "full", name: null }, "name"],
    [{ scope: "full", expires_in_hours: 0 }, "expires_in_hours"],
    [{ scope: "full", expires_in_hours: 87_601 }, "expires_in_hours"],
    [{ scope: "full", expires_in_hours: 1.5 }, "expires_in_hours"],
    [{ scope: "full", expires_in_hours: "1" }, "expires_in_hours"],
    [{ scope: "full", expires_in_hours: null }, "expires_in_hours"],
    [{ scope: "full", environment: "production" }, "environment"],
  ])("refuses %j and leaves no trace", async (body, param) => {
    const project = await gateway.addProject();
    const before = await gateway.countRows();
    const headers = { "Idempotency-Key": "refused" };
    const answer = await gateway.call("POST", "/v2/keys", { key: project.production, body, headers });
    readRefusal(answer, "invalid_request", param);
    expect(await gateway.countRows()).toEqual(before);
  });

  test("makes no key that outlives the one that asks", async () => {
    const project = await gateway.addProject();
    const expiresAt = new Date(Date.now() + 5 * HOUR_MS);
    const { key } = await gateway.addKey(project, { expiresAt });
    const keys = keysOf(gateway, project, key);
    expect(await keys.create({ scope: "full" })).toMatchObject({ expires_at: expiresAt.toISOString() });
    const { expires_at } = await keys.create({ scope: "full", expires_in_hours: 4 });
    expect(Math.abs(Date.parse(expires_at ?? "") - (Date.now() + 4 * HOUR_MS))).toBeLessThan(60_000);
    await refusalOf(
      keys.create({ scope: "full", expires_in_hours: 6 }),
      "invalid_request",
      "expires_in_hours",
    );
    const far = await keysOf(gateway, project).create({ scope: "full", expires_in_hours: 87_600 });
    expect(Date.parse(far.expires_at ?? "")).toBeGreaterThan(Date.now() + 87_599 * HOUR_MS);
  });

  test("makes nothing for a key that was revoked, although the gateway still remembers it", async () => {
    const project = await gateway.addProject();
    const { id, key } = await gateway.addKey(project, {});
    expect(await statusOf(gateway, key)).toBe(200);
    await revokeKey(gateway.db, id, testCause());
    const before = await gateway.countRows();
    await refusalOf(keysOf(gateway, project, key).create({ scope: "full" }), "unauthorized");
    expect(await gateway.countRows()).toEqual(before);
  });

  test("makes no more than an environment may have, on however many gateways at once", async () => {
    const project = await gateway.addProject();
    await fillKeys(gateway, project, KEYS_MAX - 4);
    const mate = await gateway.startMate();
    try {
      const answers = await Promise.all(
        Array.from({ length: 12 }, (_, n) =>
          gateway.call("POST", "/v2/keys", {
            key: project.production,
            body: { scope: "jobs" },
            port: n % 2 === 0 ? gateway.port : mate.port,
          }),
        ),
      );
      const refused = answers.filter(({ status }) => status !== 201);
      expect(refused.length).toBe(9);
      for (const answer of refused) readRefusal(answer, "plan_limit_exceeded");
    } finally {
      await mate.stop();
    }
    // The other environment has a limit of its own, and a deleted key makes room.
    const keys = keysOf(gateway, project);
    await keysOf(gateway, project, project.development).create({ scope: "jobs" });
    const [newest] = (await keys.list()).data;
    await keys.delete(newest?.id ?? "");
    await keys.create({ scope: "jobs" });
    await refusalOf(keys.create({ scope: "jobs" }), "plan_limit_exceeded");
  });
});

describe("a key of scope", () => {
  test.each(["jobs", "read"] as const)("%s may not do anything with keys", async (scope) => {
    const project = await gateway.addProject();
    const { id, key } = await keysOf(gateway, project).create({ scope });
    for (const [method, path, body] of [
      ["POST", "/v2/keys", { scope }],
      ["GET", "/v2/keys", undefined],
      ["POST", `/v2/keys/${id}/rotate`, {}],
      ["DELETE", `/v2/keys/${id}`, undefined],
    ] as const) {
      readRefusal(await gateway.call(method, path, { key, ...(body && { body }) }), "insufficient_scope");
    }
  });

  test("jobs creates jobs, and one of scope read does not", async () => {
    const project = await gateway.addProject();
    const keys = keysOf(gateway, project);
    const clients = [
      clientOf(gateway, (await keys.create({ scope: "jobs" })).key),
      clientOf(gateway, (await keys.create({ scope: "read" })).key),
    ] as const;
    await clients[0].jobs.create({ target_url: TARGET_URL });
    await refusalOf(clients[1].jobs.create({ target_url: TARGET_URL }), "insufficient_scope");
  });
});
