import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { makeKey } from "../../../shared/domain/key.ts";
import { revokeKey } from "../../../shared/store/resources/keys.ts";
import { testCause } from "../../support/cause.ts";
import {
  type Answer,
  parseRaw,
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

const NOTICED_MS_MAX = 5_000;
const ASK_EVERY_MS = 10;
const TEST_TIMEOUT_MS = 60_000;

const get = (authorization: string, port = gateway.port) =>
  gateway.call("GET", "/v2/project", { port, headers: { Authorization: authorization } });

describe("a request under /v2", () => {
  test("needs a key, and a 401 has one message whatever the reason", async () => {
    const { key: expired } = await gateway.addKey(project, { expiresAt: new Date(Date.now() - 1_000) });
    const { key: revoked, id } = await gateway.addKey(project, {});
    await revokeKey(gateway.db, id, testCause());
    const { production } = project;
    const mistyped = production.slice(0, -1) + (production.endsWith("a") ? "b" : "a");
    const answers = [
      await gateway.call("GET", "/v2/project"),
      await gateway.call("GET", "/v2/nothing"),
      await gateway.call("PUT", "/v2/jobs"),
      await get(""),
      await get("Bearer"),
      await get(`Basic ${production}`),
      await get(production),
      await get(`Bearer ${mistyped}`),
      await get(`Bearer ${makeKey("production", randomBytes)}`),
      await get(`Bearer ${expired}`),
      await get(`Bearer ${revoked}`),
      await get(`Bearer ${production} ${production}`),
    ];
    const messages = answers.map((answer) => readRefusal(answer, "unauthorized").message);
    expect(new Set(messages).size).toBe(1);
    for (const { headers } of answers) {
      expect(headers.get("www-authenticate")).toBe("Bearer");
      expect(headers.get("service-version")).toBe("2026-11-01");
    }
  });

  test("is refused if it names two keys", async () => {
    const line = `Authorization: Bearer ${project.production}\r\n`;
    const raw = await gateway.send(`GET /v2/project HTTP/1.1\r\nHost: test\r\n${line}${line}\r\n`);
    readRefusal(parseRaw(raw), "unauthorized");
  });

  test("may spell the scheme in any case", async () => {
    expect((await get(`bearer ${project.production}`)).status).toBe(200);
  });

  test("without a key is refused before its body is read", async () => {
    const head = "POST /v2/jobs HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n";
    readRefusal(parseRaw(await gateway.send(head)), "unauthorized");
  });
});

// Both tests run at once, because each one waits until the gateways' caches expire.
describe.concurrent("a gateway's cached key", () => {
  /** Asks both gateways until neither answers as before. Each must change its answer within the promised time. */
  async function expectNoticed(authorization: string, isOld: (answer: Answer) => boolean): Promise<void> {
    const startedAt = performance.now();
    await Promise.all(
      [gateway.port, mate.port].map(async (port) => {
        for (;;) {
          const askedAt = performance.now();
          if (!isOld(await get(authorization, port))) break;
          if (askedAt - startedAt > NOTICED_MS_MAX) throw new Error(`not noticed on port ${port}`);
          await Bun.sleep(ASK_EVERY_MS);
        }
      }),
    );
  }

  test(
    "expires in time: a revoked key works on no gateway 5 s later",
    async () => {
      const { key, id } = await gateway.addKey(project, {});
      for (const port of [gateway.port, mate.port])
        expect((await get(`Bearer ${key}`, port)).status).toBe(200);
      await revokeKey(gateway.db, id, testCause());
      await expectNoticed(`Bearer ${key}`, ({ status }) => status === 200);
      for (const port of [gateway.port, mate.port])
        readRefusal(await get(`Bearer ${key}`, port), "unauthorized");
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "expires in time: a key works until it expires, and never after",
    async () => {
      const expiresAt = new Date(Date.now() + 10_000);
      const { key } = await gateway.addKey(project, { expiresAt });
      let served = 0;
      for (;;) {
        const askedAt = Date.now();
        const { status } = await get(`Bearer ${key}`);
        if (status !== 200) break;
        served++;
        expect(askedAt).toBeLessThan(expiresAt.getTime());
        await Bun.sleep(ASK_EVERY_MS);
      }
      expect(Date.now()).toBeGreaterThanOrEqual(expiresAt.getTime());
      expect(served).toBeGreaterThan(0);
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "expires in time: every gateway sees an operator's change within 5 s",
    async () => {
      const own = await gateway.addProject();
      for (const port of [gateway.port, mate.port]) {
        expect((await get(`Bearer ${own.production}`, port)).text).toContain('"plan":"pro"');
      }
      await gateway.query("UPDATE projects SET plan = 'scale' WHERE no = $1", [own.no]);
      await expectNoticed(`Bearer ${own.production}`, ({ text }) => !text.includes('"plan":"scale"'));
    },
    TEST_TIMEOUT_MS,
  );
});

describe("a path outside /v2", () => {
  test.each(["/", "/v1/jobs", "/v2x", "/health"])("is 404 without a key: %s", async (path) => {
    const answer = await gateway.call("GET", path);
    readRefusal(answer, "resource_not_found");
    expect(answer.headers.get("service-version")).toBeNull();
  });
});
