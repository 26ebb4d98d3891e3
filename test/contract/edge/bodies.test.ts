import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";
import {
  parseRaw,
  readRefusal,
  startTestGateway,
  TARGET_URL,
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

const MEBIBYTE = 1_048_576;
const VALID = JSON.stringify({ target_url: TARGET_URL });

const head = (...lines: string[]) =>
  [
    "POST /v2/jobs HTTP/1.1",
    "Host: test",
    `Authorization: Bearer ${project.production}`,
    ...lines,
    "",
    "",
  ].join("\r\n");
const json = "Content-Type: application/json";
const chunked = (...chunks: string[]) =>
  [...chunks, ""].map((chunk) => `${Buffer.byteLength(chunk).toString(16)}\r\n${chunk}\r\n`).join("");

describe("a body on the wire", () => {
  test("may come in chunks", async () => {
    const raw = await gateway.send(
      head(json, "Transfer-Encoding: chunked") + chunked(VALID.slice(0, 5), VALID.slice(5)),
    );
    expect(parseRaw(raw).status).toBe(201);
  });

  test("in chunks is counted as it comes, and cut off at the limit", async () => {
    const before = await gateway.countRows();
    const padding = " ".repeat(65_536);
    const raw = await gateway.send(
      head(json, "Transfer-Encoding: chunked") + chunked(VALID, ...Array<string>(16).fill(padding)),
    );
    readRefusal(parseRaw(raw), "payload_too_large");
    expect(await gateway.countRows()).toEqual(before);
  });

  test("of exactly the limit is accepted", async () => {
    const body = VALID + " ".repeat(MEBIBYTE - VALID.length);
    const whole = await gateway.send(head(json, `Content-Length: ${MEBIBYTE}`) + body);
    expect(parseRaw(whole).status).toBe(201);
    const inChunks = await gateway.send(head(json, "Transfer-Encoding: chunked") + chunked(body));
    expect(parseRaw(inChunks).status).toBe(201);
  });

  test("beyond what the gateway would receive and drop is refused by its declared length, and the connection ends", async () => {
    for (const length of [64 * MEBIBYTE + 1, 99_999_999_999]) {
      const answer = parseRaw(await gateway.send(head(json, `Content-Length: ${length}`)));
      readRefusal(answer, "payload_too_large");
      expect(answer.headers.get("connection")).toBe("close");
    }
  });

  test("is checked for its media type before its size", async () => {
    const raw = await gateway.send(head("Content-Type: text/plain", `Content-Length: ${MEBIBYTE + 1}`));
    readRefusal(parseRaw(raw), "unsupported_media_type");
  });

  test.each(["abc", "-1", "1, 2", "99999999999999999999999999"])(
    "with the length %s is not HTTP, and leaves nothing behind",
    async (length) => {
      const before = await gateway.countRows();
      const raw = await gateway.send(head(json, `Content-Length: ${length}`) + VALID);
      expect(parseRaw(raw).status).toBe(400);
      expect(await gateway.countRows()).toEqual(before);
    },
  );

  test("with both a length and chunks is refused, since two readers could see two requests", async () => {
    const lines = [json, "Content-Length: 5", "Transfer-Encoding: chunked"];
    expect(parseRaw(await gateway.send(head(...lines) + chunked(VALID))).status).toBe(400);
  });

  test("that is not UTF-8 is refused", async () => {
    const bytes = Buffer.concat([
      Buffer.from(head(json, "Content-Length: 3")),
      Buffer.from([0x22, 0xff, 0x22]),
    ]);
    readRefusal(parseRaw(await gateway.send(bytes)), "invalid_request");
  });

  test("that is absent is refused", async () => {
    readRefusal(parseRaw(await gateway.send(head(json))), "invalid_request");
  });

  test("that breaks off creates nothing, and the gateway goes on", async () => {
    const before = await gateway.countRows();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const socket = net.connect(gateway.port, "127.0.0.1", () => {
      socket.write(head(json, `Content-Length: ${VALID.length}`) + VALID.slice(0, -1), () =>
        socket.destroy(),
      );
    });
    socket.on("error", reject);
    socket.on("close", () => resolve());
    await promise;
    const answer = await gateway.call("GET", "/v2/jobs", { key: project.production });
    expect(answer.status).toBe(200);
    expect(await gateway.countRows()).toEqual(before);
  });

  test("that is ignored is never read as the next request", async () => {
    const job = await gateway.createJob(project);
    const smuggled = "GET /v2/project HTTP/1.1\r\nHost: test\r\n\r\n";
    const raw = await gateway.send(
      `DELETE /v2/jobs/${job.id} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer ${project.production}\r\n` +
        `Content-Length: ${smuggled.length}\r\n\r\n${smuggled}`,
    );
    expect(parseRaw(raw).status).toBe(200);
    expect(raw.match(/HTTP\/1\.1 /g)?.length).toBe(1);
  });
});
