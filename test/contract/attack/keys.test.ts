import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { makeKey } from "../../../shared/domain/key.ts";
import { findKey, revokeKey } from "../../../shared/store/resources/keys.ts";
import { testCause } from "../../support/cause.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { expectNoTrace, expectServed } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const GUESSES = 2_000;
const CONNECTIONS = 64;
const get = (authorization: string | null, port = gateway.port) =>
  gateway.call("GET", "/v2/project", {
    port,
    headers: authorization === null ? {} : { Authorization: authorization },
  });

test("an answer to an invalid key has the same bytes whatever is wrong with the key", async () => {
  const { key: expired } = await gateway.addKey(project, { expiresAt: new Date(Date.now() - 1_000) });
  const { key: revoked, id } = await gateway.addKey(project, {});
  await revokeKey(gateway.db, id, testCause());
  const { production, development } = project;
  const mistyped = production.slice(0, -1) + (production.endsWith("a") ? "b" : "a");
  const keys = [
    mistyped,
    makeKey("production", randomBytes),
    makeKey("development", randomBytes),
    expired,
    revoked,
  ];
  const headers = [
    ...[null, "", "Bearer", production, `Basic ${production}`, `Bearer ${production}, Bearer ${development}`],
    ...[`Bearer ${production} `.repeat(2), `Bearer ${"a".repeat(10_000)}`],
    ...keys.map((key) => `Bearer ${key}`),
  ];
  const bytes = await expectNoTrace(gateway, project, () =>
    Promise.all(
      headers.map(async (header) => {
        const answer = await get(header);
        const { request_id } = readRefusal(answer, "unauthorized");
        const shown = [...answer.headers].filter(([name]) => !["date", "request-id"].includes(name));
        return JSON.stringify([shown, answer.text.replace(request_id, "")]);
      }),
    ),
  );
  expect(new Set(bytes).size).toBe(1);
});

test("thousands of guessed keys hold up no caller, whether its key is cached or not", async () => {
  const { key: fresh } = await gateway.addKey(project, {});
  let left = GUESSES;
  const guessing = Array.from({ length: CONNECTIONS }, async () => {
    while (left-- > 0) readRefusal(await get(`Bearer ${makeKey("production", randomBytes)}`), "unauthorized");
  });
  await expectServed(gateway, project);
  expect((await get(`Bearer ${fresh}`)).status).toBe(200);
  await Promise.all(guessing);
  await expectServed(gateway, project);
});

test("a gateway that stops has recorded the last use of each used key, and none of an unused key", async () => {
  const mate = await gateway.startMate();
  const used = await gateway.addKey(project, {});
  const idle = await gateway.addKey(project, {});
  const startedAt = Date.now();
  for (let n = 0; n < 5; n++) expect((await get(`Bearer ${used.key}`, mate.port)).status).toBe(200);
  await mate.stop();
  expect((await findKey(gateway.db, idle.id))?.lastUsedAt).toBeNull();
  const lastUsedAt = (await findKey(gateway.db, used.id))?.lastUsedAt?.getTime();
  expect(lastUsedAt).toBeGreaterThanOrEqual(startedAt);
  expect(lastUsedAt).toBeLessThanOrEqual(Date.now());
});
