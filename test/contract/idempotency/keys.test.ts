import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  type Answer,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
  project = await gateway.addProject();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

let lastKey = 0;
const newKey = () => `key ${++lastKey}`;
const post = (path: string, idempotencyKey: string, body?: object, port = gateway.port) =>
  gateway.call("POST", path, {
    key: project.production,
    port,
    headers: { "Idempotency-Key": idempotencyKey },
    ...(body === undefined ? {} : { body }),
  });
const viewOf = ({ text }: Answer) => JSON.parse(text) as { id: string; key: string };
const isReplayed = ({ headers }: Answer) => headers.get("idempotent-replayed") === "true";

/** Makes a key to be rotated. */
async function makeKey(): Promise<string> {
  return viewOf(await post("/v2/keys", newKey(), { scope: "jobs" })).id;
}

const CASES: [string, () => Promise<string>, object | undefined][] = [
  ["POST /v2/keys", async () => "/v2/keys", { scope: "jobs", name: "once" }],
  ["POST /v2/keys/{id}/rotate", async () => `/v2/keys/${await makeKey()}/rotate`, { overlap_hours: 1 }],
  ["POST /v2/keys/{id}/rotate without a body", async () => `/v2/keys/${await makeKey()}/rotate`, undefined],
];

describe.each(CASES)("an Idempotency-Key of %s", (_, pathOf, body) => {
  test("makes one key, and is replayed with its text through every gateway, also once that is deleted", async () => {
    const [path, key] = [await pathOf(), newKey()];
    const first = await post(path, key, body);
    expect([first.status, isReplayed(first)]).toEqual([201, false]);
    const { id, key: text } = viewOf(first);
    expect(text).toMatch(/^svc_live_[0-9A-Za-z]{38}$/);
    const before = await gateway.countRows();
    for (const port of [gateway.port, mate.port]) {
      const again = await post(path, key, body, port);
      expect([again.status, again.text, isReplayed(again)]).toEqual([201, first.text, true]);
    }
    expect(await gateway.countRows()).toEqual(before);
    await gateway.call("DELETE", `/v2/keys/${id}`, { key: project.production });
    expect((await post(path, key, body)).text).toBe(first.text);
  });

  test("keeps its answer sealed", async () => {
    const first = await post(await pathOf(), newKey(), body);
    const rows = await gateway.query<{ answer: Buffer | null }>("SELECT answer FROM idempotency_keys");
    expect(rows.length).toBeGreaterThan(0);
    for (const { answer } of rows) {
      expect(answer?.includes(viewOf(first).key.slice(9))).toBe(false);
      expect(answer?.includes("svc_")).toBe(false);
    }
  });

  test("on many requests at once over two gateways makes one key", async () => {
    const [path, key] = [await pathOf(), newKey()];
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, n) => post(path, key, body, n % 2 === 0 ? gateway.port : mate.port)),
    );
    expect(new Set(answers.map(({ status, text }) => `${status} ${text}`)).size).toBe(1);
    expect(answers.filter((answer) => !isReplayed(answer)).length).toBe(1);
  });

  test("is left free by a refused request, and is refused for another body", async () => {
    const [path, key] = [await pathOf(), newKey()];
    readRefusal(await post(`${path}?a=1`, key, body), "invalid_request", "a");
    expect((await post(path, key, body)).status).toBe(201);
    const answer = await post(path, key, { ...body, extra: 1 });
    readRefusal(answer, "idempotency_conflict", "Idempotency-Key");
  });
});
