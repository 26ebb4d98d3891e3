import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { makeKey } from "../../../shared/domain/key.ts";
import { revokeKey } from "../../../shared/store/keys.ts";
import { testCause } from "../../support/cause.ts";
import {
  parseRaw,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const NOTICED_MS_MAX = 5_000;
const TEST_TIMEOUT_MS = 20_000;

const get = (authorization: string, path = "/v2/project") =>
  gateway.call("GET", path, { headers: { Authorization: authorization } });

describe("a request under /v2", () => {
  test("needs a key: every reason has one message, and no answer tells more", async () => {
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

  test("must not name two keys", async () => {
    const line = `Authorization: Bearer ${project.production}\r\n`;
    const raw = await gateway.send(`GET /v2/project HTTP/1.1\r\nHost: test\r\n${line}${line}\r\n`);
    readRefusal(parseRaw(raw), "unauthorized");
  });

  test("may spell the scheme in any case", async () => {
    expect((await get(`bearer ${project.production}`)).status).toBe(200);
  });

  test("without a key does not get its body read", async () => {
    const head = "POST /v2/jobs HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n";
    readRefusal(parseRaw(await gateway.send(head)), "unauthorized");
  });

  test(
    "is refused within 5 s of its key's revocation",
    async () => {
      const { key, id } = await gateway.addKey(project, {});
      expect((await get(`Bearer ${key}`)).status).toBe(200);
      await revokeKey(gateway.db, id, testCause());
      const revokedAt = performance.now();
      let isRefused = false;
      while (!isRefused && performance.now() - revokedAt < NOTICED_MS_MAX) {
        isRefused = (await get(`Bearer ${key}`)).status === 401;
      }
      expect(isRefused).toBe(true);
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "sees an operator's change within 5 s",
    async () => {
      const own = await gateway.addProject();
      expect((await get(`Bearer ${own.production}`)).text).toContain('"plan":"pro"');
      await gateway.query("UPDATE projects SET plan = 'scale' WHERE no = $1", [own.no]);
      const changedAt = performance.now();
      let isSeen = false;
      while (!isSeen && performance.now() - changedAt < NOTICED_MS_MAX) {
        isSeen = (await get(`Bearer ${own.production}`)).text.includes('"plan":"scale"');
      }
      expect(isSeen).toBe(true);
    },
    TEST_TIMEOUT_MS,
  );
});

describe("a path outside /v2", () => {
  test.each(["/", "/v1/jobs", "/v2x", "/health"])("needs no key to be unknown: %s", async (path) => {
    const answer = await gateway.call("GET", path);
    readRefusal(answer, "resource_not_found");
    expect(answer.headers.get("service-version")).toBeNull();
  });
});
