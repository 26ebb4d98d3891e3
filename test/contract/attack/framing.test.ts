import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import {
  parseRaw,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { chunked, exchange, expectNoTrace, head, JSON_TYPE } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const BODY = JSON.stringify({ target_url: TARGET_URL });
const LENGTH = `Content-Length: ${BODY.length}`;
const CHUNKED = "Transfer-Encoding: chunked";
const SMUGGLED = `GET /v2/project HTTP/1.1\r\nHost: test\r\n\r\n`;

const post =
  (lines: string[], body = BODY) =>
  () =>
    `${head(project, "POST /v2/jobs", JSON_TYPE, ...lines)}\r\n${body}`;
const get =
  (start: string, ...lines: string[]) =>
  () =>
    `${head(project, start, ...lines)}\r\n`;
/** A request in chunks that end correctly, with this Transfer-Encoding. */
const coded = (coding: string) => post([`Transfer-Encoding: ${coding}`], chunked(BODY));
const inChunks = (body: string) => post([CHUNKED], body);
const hex = BODY.length.toString(16);

describe("a request that two readers could read as two requests", () => {
  test.each<[string, () => string]>([
    ["a negative length", post(["Content-Length: -1"])],
    ["a signed length", post([`Content-Length: +${BODY.length}`])],
    ["a hexadecimal length", post([`Content-Length: 0x${hex}`])],
    ["an empty length", post(["Content-Length:"])],
    ["a list of lengths", post([`Content-Length: ${BODY.length}, ${BODY.length}`])],
    ["two lengths that differ", post([LENGTH, "Content-Length: 5"])],
    ["a length beyond 64 bits", post([`Content-Length: ${2n ** 64n + BigInt(BODY.length)}`])],
    ["a blank before the colon", post([`Content-Length : ${BODY.length}`])],
    ["a length and chunks", post([LENGTH, CHUNKED], chunked(BODY))],
    ["chunks and a length", post([CHUNKED, LENGTH], chunked(BODY))],
    ["a folded header", post([LENGTH, "X: 1\r\n Transfer-Encoding: chunked"])],
    ["a bare line feed in the head", post(["X: 1\nTransfer-Encoding: chunked"], chunked(BODY))],
    ["another coding", coded("xchunked")],
    ["a coding before chunks", coded("gzip, chunked")],
    ["a coding behind chunks", coded("chunked, identity")],
    ["chunks twice", post([CHUNKED, CHUNKED], chunked(BODY))],
    ["a quoted coding", coded('"chunked"')],
    ["a coding with a parameter", coded("chunked;q=1")],
    ["a coding behind a control character", coded("\u000bchunked")],
    ["chunks whose size is no number", inChunks(`zz\r\n${BODY}\r\n0\r\n\r\n`)],
    ["chunks whose size is signed", inChunks(`+${hex}\r\n${BODY}\r\n0\r\n\r\n`)],
    ["chunks whose size has a prefix", inChunks(`0x${hex}\r\n${BODY}\r\n0\r\n\r\n`)],
    ["chunks whose size has a blank", inChunks(`${hex} \r\n${BODY}\r\n0\r\n\r\n`)],
    ["chunks whose size is beyond 64 bits", inChunks(`1${"0".repeat(15)}${hex}\r\n${BODY}\r\n0\r\n\r\n`)],
    ["a chunk that is longer than it says", inChunks(`1\r\n${BODY}\r\n0\r\n\r\n`)],
    ["chunks between bare line feeds", inChunks(`${hex}\n${BODY}\n0\n\n`)],
    ["a bare line feed in a chunk's extension", inChunks(`${hex};a\nb\r\n${BODY}\r\n0\r\n\r\n`)],
    ["trailers", inChunks(`${hex}\r\n${BODY}\r\n0\r\nX: 1\r\n\r\n`)],
    ["a length as a trailer", inChunks(`${hex}\r\n${BODY}\r\n0\r\nContent-Length: 1\r\n\r\n`)],
    ["a request in the place of the trailers", inChunks(`${hex}\r\n${BODY}\r\n0\r\n${SMUGGLED}`)],
    ["a length that is too small", post([`Content-Length: ${BODY.length - 1}`])],
    ["something behind the body", post([LENGTH], `${BODY}\r\n`)],
  ])("is refused by the server itself and does nothing, and the connection ends: %s", async (_, bytes) => {
    const raw = await expectNoTrace(gateway, project, () => exchange(gateway.port, bytes()));
    expect(raw).toStartWith("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n");
    expect(raw.match(/HTTP\/1\.1 /g)).toHaveLength(1);
  });

  test("is refused and creates nothing, also if its body comes late and ends with trailers", async () => {
    const lines = head(project, "POST /v2/jobs", JSON_TYPE, CHUNKED, "Expect: 100-continue");
    await expectNoTrace(gateway, project, async () => {
      for (let round = 0; round < 10; round++) {
        const { promise, resolve } = Promise.withResolvers<string>();
        let text = "";
        const socket = net.connect(gateway.port, "127.0.0.1", () => socket.write(`${lines}\r\n`));
        socket.on("data", (chunk: Buffer) => {
          // The 100 Continue has come, so the request waits for its body.
          if (text === "") socket.write(`${hex}\r\n${BODY}\r\n0\r\nX: 1\r\n\r\n`);
          text += chunk.toString();
        });
        socket.on("close", () => resolve(text));
        expect(await promise).toContain("HTTP/1.1 400 Bad Request");
      }
    });
  });

  test("changes no job: a cancel with such a body cancels nothing", async () => {
    const job = await gateway.createJob(project);
    const start = head(project, `DELETE /v2/jobs/${job.id}`, CHUNKED);
    expect(await exchange(gateway.port, `${start}\r\nzz\r\n`)).toStartWith("HTTP/1.1 400");
    const shown = await gateway.call("GET", `/v2/jobs/${job.id}`, { key: project.production });
    expect(JSON.parse(shown.text).status).toBe("queued");
  });

  test.each<[string, () => string]>([
    ["behind one that is not answered yet", () => get("GET /v2/project")().repeat(3)],
    ["behind a body", () => `${post([LENGTH])()}${SMUGGLED}`],
    [
      "behind a body that nobody asked for",
      () => `${get("GET /v2/project", "Content-Length: 3")()}abc${SMUGGLED}`,
    ],
    ["behind the end of the client's side", get("GET /v2/project")],
  ])("gets no answer to the second one, and the connection ends: another %s", async (place, bytes) => {
    const end = place.includes("client's side");
    const raw = await expectNoTrace(gateway, project, () => exchange(gateway.port, bytes(), { end }));
    expect(raw).toBe("");
  });

  test("that gives its length twice is refused before its body is read, whatever the length", async () => {
    for (const path of ["/v2/jobs", "/v2/jobs/batch"]) {
      const lines = ["Content-Length: 99999999999", "Content-Length: 99999999999"];
      const raw = await gateway.send(`${head(project, `POST ${path}`, JSON_TYPE, ...lines)}\r\n`);
      readRefusal(parseRaw(raw), "invalid_request");
    }
    // The refused body's bytes cannot be counted, so none of the gateway's memory may stay taken for them.
    const batch = await gateway.call("POST", "/v2/jobs/batch", {
      key: project.production,
      body: { jobs: [{ target_url: TARGET_URL }] },
    });
    expect(batch.status).toBe(201);
  });
});

describe("a repeated header", () => {
  test.each<[string, ErrorCode, () => string]>([
    ["Authorization", "unauthorized", get("GET /v2/project", "Authorization: Basic x")],
    ["an empty Authorization", "unauthorized", get("GET /v2/project", "Authorization:")],
    ["Host", "invalid_request", get("GET /v2/project", "Host: other")],
    [
      "Service-Version",
      "invalid_request",
      get("GET /v2/project", "Service-Version: 2026-11-01", "Service-Version: 2026-11-01"),
    ],
    ["Content-Type", "unsupported_media_type", post([LENGTH, JSON_TYPE])],
    ["another Content-Type", "unsupported_media_type", post([LENGTH, "Content-Type: text/plain"])],
    [
      "Content-Encoding",
      "unsupported_media_type",
      post([LENGTH, "Content-Encoding: identity", "Content-Encoding: identity"]),
    ],
    ["Content-Length", "invalid_request", post([LENGTH, LENGTH])],
  ])("is refused: %s", async (_, code, bytes) => {
    const raw = await expectNoTrace(gateway, project, () => gateway.send(bytes()));
    const error = readRefusal(parseRaw(raw), code, /Service-Version/.test(_) ? "Service-Version" : undefined);
    expect(error.message).not.toContain(project.production);
  });

  test.each<string[]>([
    ["Idempotency-Key: a", "idempotency-key: b"],
    ["Idempotency-Key: a", "Idempotency-Key: a"],
    ["Idempotency-Key: a", "Idempotency-Key:"],
    ["Idempotency-Key:", "Idempotency-Key: a"],
    // A proxy joins two headers like this.
    ["Idempotency-Key: a, b"],
  ])("is refused if it is Idempotency-Key: %s %s", async (...lines) => {
    for (const bytes of [post([LENGTH, ...lines]), post([LENGTH, ...lines], BODY.replace("hook", "haak"))]) {
      const raw = await expectNoTrace(gateway, project, () => gateway.send(bytes()));
      readRefusal(parseRaw(raw), "invalid_request", "Idempotency-Key");
    }
  });

  test("differs from a comma within one Idempotency-Key", async () => {
    const raw = await gateway.send(post([LENGTH, "Idempotency-Key: a,b ,c"])());
    expect(parseRaw(raw).status).toBe(201);
  });
});

describe("a request line", () => {
  test.each<[string, number | "no answer", () => string]>([
    ["an unknown method", "no answer", get("FROBNICATE /v2/project")],
    ["a method in lower case", "no answer", get("get /v2/project")],
    ["a method that is no token", 400, get("G@T /v2/project")],
    ["no method", 400, get(" /v2/project")],
    ["the asterisk", 400, get("OPTIONS *")],
    ["a path without a slash", 400, get("GET v2/project")],
    ["another scheme", 400, get("GET ftp://test/v2/project")],
    ["two blanks", 400, get("GET  /v2/project")],
    ["a blank in the path", 505, get("GET /v2/pro ject")],
    ["a NUL in the path", 505, get("GET /v2/pro\0ject")],
    ["a control character in the path", 505, get("GET /v2/pro\u0001ject")],
    ["no version", 505, () => "GET /v2/project\r\n\r\n"],
    ["HTTP/2 without an upgrade", 400, () => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ["TLS", 400, () => "\u0016\u0003\u0001\u0002\0\u0001\0\u0001\u00fc\u0003\u0003"],
    ["an empty line before it", 400, () => `\r\n${get("GET /v2/project")()}`],
    ["a NUL in a header", 400, get("GET /v2/project", "X: a\0b")],
    ["a control character in a header", 400, get("GET /v2/project", "X: a\u0001b")],
    ["a blank in a header's name", 400, get("GET /v2/project", "X Y: 1")],
    ["a header without a name", 400, get("GET /v2/project", ": 1")],
    ["a header without a colon", 400, get("GET /v2/project", "X")],
    ["16 KB of header", 431, get("GET /v2/project", `X: ${"a".repeat(16_384)}`)],
    ["1 MB of header", 431, get("GET /v2/project", `X: ${"a".repeat(1_048_576)}`)],
    [
      "a thousand headers",
      431,
      get("GET /v2/project", ...Array.from({ length: 1_000 }, (_, n) => `X${n}: 1`)),
    ],
    ["1 MB of path", 431, get(`GET /v2/${"a".repeat(1_048_576)}`)],
    ["1 MB of query", 431, get(`GET /v2/jobs?${"a".repeat(1_048_576)}`)],
  ])(
    "that Bun refuses is answered without our envelope, and the connection ends: %s",
    async (_, status, bytes) => {
      const raw = await expectNoTrace(gateway, project, () =>
        exchange(gateway.port, Buffer.from(bytes(), "latin1")),
      );
      if (status === "no answer") expect(raw).toBe("");
      else expect(raw).toMatch(new RegExp(`^HTTP/1\\.1 ${status} [^\\r]+\r\nConnection: close\r\n\r\n$`));
    },
  );

  test.each<[string, ErrorCode, () => string]>([
    ["TRACE", "method_not_allowed", get("TRACE /v2/project")],
    ["CONNECT with a path", "method_not_allowed", get("CONNECT /v2/project")],
    ["CONNECT", "resource_not_found", get("CONNECT test:443")],
    ["PROPFIND", "method_not_allowed", get("PROPFIND /v2/project")],
    ["QUERY", "method_not_allowed", get("QUERY /v2/project")],
    ["a host as its path", "resource_not_found", get("GET //v2/project")],
    ["an encoded slash", "resource_not_found", get("GET /v2%2fproject")],
    ["a parameter of the path", "resource_not_found", get("GET /v2/project;a=b")],
    ["a fragment", "resource_not_found", get("GET /v2/project#a")],
    ["a dot at the end", "resource_not_found", get("GET /v2/project.")],
    ["a way out of /v2", "resource_not_found", get("GET /v2/../project")],
    ["an encoded way out of /v2", "resource_not_found", get("GET /v2/%2e%2e/project")],
    ["broken percent-encoding", "resource_not_found", get("GET /v2/%zz%e")],
    ["broken percent-encoding in an id", "resource_not_found", get("GET /v2/jobs/%zz")],
    ["broken UTF-8 in an id", "resource_not_found", get("GET /v2/jobs/%ff%fe")],
    ["an encoded NUL in an id", "resource_not_found", get("GET /v2/jobs/%00")],
    ["an encoded slash in an id", "resource_not_found", get("GET /v2/jobs/a%2fb")],
    ["15 KB of path", "resource_not_found", get(`GET /v2/${"a".repeat(15_000)}`)],
    ["15 KB of id", "resource_not_found", get(`GET /v2/jobs/${"a".repeat(15_000)}`)],
    ["the prototype as its path", "resource_not_found", get("GET /v2/__proto__")],
    ["no host", "invalid_request", () => `GET /v2/project HTTP/1.0\r\n\r\n`],
  ])("that is HTTP but names nothing that exists gets the documented answer: %s", async (_, code, bytes) => {
    const raw = await expectNoTrace(gateway, project, () => gateway.send(Buffer.from(bytes(), "latin1")));
    readRefusal(parseRaw(raw), code);
  });

  test.each<[string, string, () => string]>([
    ["a long parameter", "a".repeat(256), get(`GET /v2/jobs?${"a".repeat(15_000)}=1`)],
    ["a thousand of the same", "limit", get(`GET /v2/jobs?${"limit=1&".repeat(1_000)}`)],
    ["the prototype", "__proto__", get("GET /v2/jobs?__proto__=1")],
    ["broken percent-encoding", "status", get("GET /v2/jobs?status=%zz")],
    ["an encoded NUL", "status", get("GET /v2/jobs?status=%00")],
    ["broken UTF-8", "status", get("GET /v2/jobs?status=%ff")],
    ["a fragment", "#x", get("GET /v2/jobs?#x")],
  ])("with an invalid query is refused with the name of the fault: %s", async (_, param, bytes) => {
    const raw = await expectNoTrace(gateway, project, () => gateway.send(bytes()));
    readRefusal(parseRaw(raw), "invalid_request", param);
  });

  test.each(["http://other/v2/project", "https://other:1/v2/project"])(
    "may spell the path of the project as %s",
    async (path) => {
      expect(parseRaw(await gateway.send(get(`GET ${path}`)())).status).toBe(200);
    },
  );

  test.each([
    "GET /v2/jobs/../project",
    "GET /v2/jobs/%2e%2e/project",
    "GET /v2/jobs/.%2E/project",
    "GET /v2/./project",
    "GET /v2/%2e/project",
    "GET /v2/project/.",
    "GET /v2/project/x/..",
    "GET /v2/project/%2E%2e/project",
    "GET /v2\\project",
    "GET /v2\\..\\v2\\project",
    "GET /x/../v2/project",
    "GET http://other/v2/jobs/../project",
    "POST /v2/runs/./retry",
    "POST /v2/jobs/.\\batch",
    "POST /v2/schedules/x/../preview",
    "GET /v2/jobs/.",
    "GET /v2/jobs/..",
    "DELETE /v2/jobs/%2e",
    "GET /v2/../openapi.json",
    "GET /docs/../openapi.json",
    "GET /docs\\start.js",
  ])("is never rewritten: %s is an unknown path", async (start) => {
    const raw = await expectNoTrace(gateway, project, () => gateway.send(get(start)()));
    readRefusal(parseRaw(raw), "resource_not_found");
  });

  test("reaches no job by another spelling of its path", async () => {
    const { id } = await gateway.createJob(project);
    for (const path of [
      `./${id}`,
      `.\\${id}`,
      `x/../${id}`,
      `${id}/.`,
      `${id}/x/..`,
      `${id}#x`,
      `%2e/${id}`,
    ]) {
      for (const method of ["GET", "DELETE"]) {
        const raw = await gateway.send(get(`${method} /v2/jobs/${path}`)());
        readRefusal(parseRaw(raw), "resource_not_found");
      }
    }
    expect(parseRaw(await gateway.send(get(`GET /v2/jobs/${id}`)())).text).toContain('"status":"queued"');
  });

  test("whose path leads out of /v2 is asked for a key, and one that leads into /v2 is not", async () => {
    const without = (path: string) => gateway.send(`${head(null, `GET ${path}`)}\r\n`);
    readRefusal(parseRaw(await without("/v2/../openapi.json")), "unauthorized");
    readRefusal(parseRaw(await without("/x/../v2/project")), "resource_not_found");
  });
});
