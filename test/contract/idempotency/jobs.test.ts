import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import net from "node:net";
import fc from "fast-check";
import { Job } from "../../../shared/contract/job.ts";
import {
  type Answer,
  type JobView,
  readAs,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

setDefaultTimeout(240_000);

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
const body = (n = 1) => ({ target_url: TARGET_URL, payload: { n } });

interface Wish {
  body?: object | string;
  key?: string;
  port?: number;
  path?: string;
}
const post = (idempotencyKey: string, wish: Wish = {}) =>
  gateway.call("POST", wish.path ?? "/v2/jobs", {
    key: wish.key ?? project.production,
    body: wish.body ?? body(),
    port: wish.port ?? gateway.port,
    headers: { "Idempotency-Key": idempotencyKey },
  });
const isReplayed = ({ headers }: Answer) => headers.get("idempotent-replayed") === "true";

async function countJobs(owner = project): Promise<number> {
  const [row] = await gateway.query<{ count: number }>(
    "SELECT count(*)::int AS count FROM jobs WHERE project_no = $1",
    [owner.no],
  );
  return row?.count ?? 0;
}

function expectReplay(answer: Answer, first: Answer): void {
  expect(answer.status).toBe(201);
  expect(answer.text).toBe(first.text);
  expect(isReplayed(answer)).toBe(true);
}

describe("an Idempotency-Key of POST /v2/jobs", () => {
  test("makes one job: the same request gets the same answer through any gateway", async () => {
    const key = newKey();
    const first = await post(key);
    const job = readAs(Job, first, 201);
    expect(first.headers.get("idempotent-replayed")).toBeNull();
    const countBefore = await countJobs();
    for (const port of [gateway.port, mate.port]) expectReplay(await post(key, { port }), first);
    expect(await countJobs()).toBe(countBefore);
    expect(job.status).toBe("queued");
  });

  test("compares requests by their JSON value, and numbers by their text", async () => {
    const key = newKey();
    const first = await post(key, { body: `{"target_url":"${TARGET_URL}","payload":{"a":1.0,"b":"é"}}` });
    const spelled = `{ "payload": {"b":"\\u00e9", "a":1.0},\n"target_url": "${TARGET_URL}" }`;
    expectReplay(await post(key, { body: spelled }), first);
    const other = await post(key, { body: `{"target_url":"${TARGET_URL}","payload":{"a":1,"b":"é"}}` });
    readRefusal(other, "idempotency_conflict", "Idempotency-Key");
  });

  test("with another body is a conflict, even if that body would be refused", async () => {
    const key = newKey();
    await post(key);
    const before = await gateway.countRows();
    for (const other of [body(2), {}, { ...body(), runAt: "x" }, { ...body(), region: "mars" }]) {
      for (const port of [gateway.port, mate.port]) {
        readRefusal(await post(key, { body: other, port }), "idempotency_conflict", "Idempotency-Key");
      }
    }
    // A request that is not valid JSON is refused before its key is looked at.
    readRefusal(await post(key, { body: "{" }), "invalid_request");
    expect(await gateway.countRows()).toEqual(before);
  });

  test("is left free by a refused request", async () => {
    const key = newKey();
    const before = await gateway.countRows();
    readRefusal(await post(key, { body: {} }), "invalid_request", "target_url");
    expect(await gateway.countRows()).toEqual(before);
    const first = await post(key);
    expect(first.status).toBe(201);
    expect(isReplayed(first)).toBe(false);
  });

  test("is replayed after the job has moved on, has ended, or was canceled", async () => {
    const key = newKey();
    const first = await post(key);
    const job: JobView = readAs(Job, first, 201);
    await gateway.claim(project, job, 1);
    expectReplay(await post(key), first);
    await gateway.call("DELETE", `/v2/jobs/${job.id}`, { key: project.production });
    expectReplay(await post(key), first);
  });

  test("is replayed although the quota has been used up since, and a request refused for the quota leaves its key free", async () => {
    const hobby = await gateway.addProject("hobby");
    const [used, free] = [newKey(), newKey()];
    const first = await post(used, { key: hobby.production });
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    expectReplay(await post(used, { key: hobby.production }), first);
    readRefusal(await post(free, { key: hobby.production }), "quota_exceeded");
    await gateway.query("UPDATE flows SET month_runs = 0 WHERE project_no = $1", [hobby.no]);
    expect(isReplayed(await post(free, { key: hobby.production }))).toBe(false);
  });

  test("belongs to the project, the environment and the route", async () => {
    const key = newKey();
    const stranger = await gateway.addProject();
    const answers = [
      await post(key),
      await post(key, { key: project.development }),
      await post(key, { key: stranger.production }),
      await post(key, { path: "/v2/jobs/batch", body: { jobs: [body()] } }),
    ];
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 201]);
    expect(answers.map(isReplayed)).toEqual([false, false, false, false]);
  });

  test("is free again after 24 hours", async () => {
    const key = newKey();
    const first = await post(key);
    const old = async (interval: string) =>
      gateway.query(
        "UPDATE idempotency_keys SET created_at = now() - $1::interval WHERE job_ids = (SELECT job_ids FROM idempotency_keys ORDER BY created_at DESC LIMIT 1)",
        [interval],
      );
    await old("23 h 59 min");
    expectReplay(await post(key), first);
    await gateway.query(
      "UPDATE idempotency_keys SET created_at = created_at - interval '2 min' WHERE created_at < now() - interval '23 h'",
    );
    const second = await post(key, { body: body(2) });
    expect(second.status).toBe(201);
    expect(isReplayed(second)).toBe(false);
    expectReplay(await post(key, { body: body(2), port: mate.port }), second);
  });

  test("on 200 identical requests at once over two gateways makes one job and 200 equal answers", async () => {
    for (let round = 0; round < 5; round++) {
      const own = await gateway.addProject();
      const key = newKey();
      const answers = await Promise.all(
        Array.from({ length: 200 }, (_, n) =>
          post(key, { key: own.production, port: n % 2 === 0 ? gateway.port : mate.port }),
        ),
      );
      expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
      expect(answers.every(({ status }) => status === 201)).toBe(true);
      expect(answers.filter((answer) => !isReplayed(answer))).toHaveLength(1);
      expect(await countJobs(own)).toBe(1);
    }
  });

  test("on different requests at once over two gateways belongs to one of them", async () => {
    const own = await gateway.addProject();
    const key = newKey();
    const answers = await Promise.all(
      Array.from({ length: 60 }, (_, n) =>
        post(key, {
          key: own.production,
          // Every third request is invalid.
          body: n % 3 === 0 ? {} : body(n % 3),
          port: n % 2 === 0 ? gateway.port : mate.port,
        }),
      ),
    );
    const created = answers.filter(({ status }) => status === 201);
    expect(new Set(created.map(({ text }) => text)).size).toBe(1);
    expect(created.length).toBe(20);
    expect(await countJobs(own)).toBe(1);
    for (const { status } of answers) expect([201, 400, 409]).toContain(status);
  });

  test("makes one job although the first client left before its answer", async () => {
    for (let round = 0; round < 20; round++) {
      const own = await gateway.addProject();
      const key = newKey();
      const text = JSON.stringify(body());
      const { promise, resolve } = Promise.withResolvers<void>();
      const socket = net.connect(gateway.port, "127.0.0.1", () => {
        const head =
          `POST /v2/jobs HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer ${own.production}\r\n` +
          `Content-Type: application/json\r\nIdempotency-Key: ${key}\r\nContent-Length: ${text.length}\r\n\r\n`;
        socket.write(head + text, () => socket.destroy());
      });
      socket.on("close", () => resolve());
      await promise;
      const answers = [
        await post(key, { key: own.production, port: mate.port }),
        await post(key, { key: own.production }),
      ];
      expect(answers.map(({ status }) => status)).toEqual([201, 201]);
      expect(answers[1]?.text).toBe(answers[0]?.text ?? "");
      expect(await countJobs(own)).toBe(1);
    }
  });

  test("in any interleaving of keys and bodies over two gateways makes one job for each key", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.record({ key: fc.nat(2), n: fc.nat(1), other: fc.boolean() }), {
          minLength: 2,
          maxLength: 25,
        }),
        async (requests) => {
          const own = await gateway.addProject();
          const prefix = newKey();
          const answers = await Promise.all(
            requests.map(({ key, n, other }) =>
              post(`${prefix}/${key}`, {
                key: own.production,
                body: body(n),
                port: other ? mate.port : gateway.port,
              }),
            ),
          );
          for (const key of new Set(requests.map((request) => request.key))) {
            const mine = requests.map((request, index) => ({ request, answer: answers[index] as Answer }));
            const ofKey = mine.filter(({ request }) => request.key === key);
            const created = ofKey.filter(({ answer }) => answer.status === 201);
            expect(new Set(created.map(({ answer }) => answer.text)).size).toBe(1);
            expect(created.filter(({ answer }) => !isReplayed(answer))).toHaveLength(1);
            expect(new Set(created.map(({ request }) => request.n)).size).toBe(1);
            const n = created[0]?.request.n;
            for (const { request, answer } of ofKey) expect(answer.status).toBe(request.n === n ? 201 : 409);
          }
          expect(await countJobs(own)).toBe(new Set(requests.map(({ key }) => key)).size);
        },
      ),
      { numRuns: 40 },
    );
  });
});
