import { heapStats } from "bun:jsc";
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { once } from "node:events";
import net from "node:net";
import { brotliCompressSync, deflateSync, gzipSync } from "node:zlib";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { until } from "../../runtime-contract/until.ts";
import {
  parseRaw,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { exchange, expectNoTrace, expectServed, head, JSON_TYPE } from "./support.ts";

/** A busy machine takes minutes to look through the memory again and again. */
setDefaultTimeout(300_000);

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const BODY_BYTES_MAX = 1_048_576;
const BATCH_BYTES_MAX = 33_554_432;
const CHUNK_BYTES = 50_000;
/** Memory may still hold one of the bodies, as text and as bytes. All four of them would take four times as much. */
const HEAP_MARGIN_BYTES = 30_000_000;
const POSTED_AGAIN_MAX = 5;

type Framing = "with its length" | "in chunks";
const FRAMINGS: Framing[] = ["with its length", "in chunks"];

/** The bytes of a request on the wire. */
function request(start: string, body: Buffer, framing: Framing, ...lines: string[]): Buffer {
  const length = framing === "in chunks" ? "Transfer-Encoding: chunked" : `Content-Length: ${body.length}`;
  const parts: (string | Buffer)[] = [
    `${head(project, start, "Connection: close", JSON_TYPE, length, ...lines)}\r\n`,
  ];
  if (framing === "with its length") parts.push(body);
  else {
    for (let at = 0; at < body.length; at += CHUNK_BYTES) {
      const chunk = body.subarray(at, at + CHUNK_BYTES);
      parts.push(`${chunk.length.toString(16)}\r\n`, chunk, "\r\n");
    }
    parts.push("0\r\n\r\n");
  }
  return Buffer.concat(parts.map((part) => Buffer.from(part)));
}

const send = async (start: string, body: string, framing: Framing) =>
  parseRaw(await exchange(gateway.port, request(start, Buffer.from(body), framing)));

/** A payload with this many significant bytes. */
function payloadOf(bytes: number, filler: string, space = ""): string {
  const room = bytes - '{"a":""}'.length;
  const count = Math.floor(room / Buffer.byteLength(filler));
  const text = filler.repeat(count) + "x".repeat(room - count * Buffer.byteLength(filler));
  return `{${space}"a"${space}:${space}"${text}"${space}}`;
}
const jobOf = (payload: string) => `{"target_url":"${TARGET_URL}","payload":${payload}}`;

describe.each(FRAMINGS)("a body %s", (framing) => {
  test.each([
    ["plain characters", "y", ""],
    ["characters of two bytes", "é", ""],
    ["characters of four bytes", "😀", ""],
    ["escapes", "\\u00e9", ""],
    ["short escapes", "\\n", ""],
    ["white space that does not count", "y", " \t\r\n".repeat(25_000)],
  ])("may have a payload of 262,144 bytes, and is refused with one more: %s", async (_, filler, space) => {
    const fits = payloadOf(PAYLOAD_BYTES_MAX, filler, space);
    const tooLarge = payloadOf(PAYLOAD_BYTES_MAX + 1, filler, space);
    expect((await send("POST /v2/jobs", jobOf(fits), framing)).status).toBe(201);
    const batch = `{"jobs":[${jobOf(fits)},${jobOf(tooLarge)},${jobOf(fits)}]}`;
    await expectNoTrace(gateway, project, async () => {
      readRefusal(await send("POST /v2/jobs", jobOf(tooLarge), framing), "payload_too_large", "payload");
      const { details } = readRefusal(await send("POST /v2/jobs/batch", batch, framing), "invalid_request");
      expect(details).toMatchObject([{ index: 1, code: "payload_too_large", param: "payload" }]);
    });
  });

  test.each([
    ["POST /v2/jobs", BODY_BYTES_MAX, jobOf("{}"), 201],
    ["PATCH /v2/project", BODY_BYTES_MAX, '{"name":"Test"}', 200],
    ["POST /v2/jobs/batch", BATCH_BYTES_MAX, `{"jobs":[${jobOf("{}")}]}`, 201],
  ])("of %s may have %d bytes, and is refused with one more", async (start, bytesMax, body, status) => {
    expect((await send(start, body.padEnd(bytesMax), framing)).status).toBe(status);
    await expectNoTrace(gateway, project, async () => {
      const answer = await send(start, body.padEnd(bytesMax + 1), framing);
      const error = readRefusal(answer, "payload_too_large");
      expect(error.message).toContain(String(bytesMax));
    });
  });

  test("that is compressed is refused, whatever it contains", async () => {
    const job = Buffer.from(jobOf("{}"));
    const bodies: [string, Buffer][] = [
      ["gzip", gzipSync(job)],
      ["gzip", gzipSync(Buffer.alloc(BATCH_BYTES_MAX, " "))],
      ["deflate", deflateSync(job)],
      ["br", brotliCompressSync(job)],
      ["identity, gzip", gzipSync(job)],
      ["GZIP", job],
      ["", job],
    ];
    await expectNoTrace(gateway, project, async () => {
      for (const [coding, body] of bodies) {
        const bytes = request("POST /v2/jobs", body, framing, `Content-Encoding: ${coding}`);
        readRefusal(parseRaw(await exchange(gateway.port, bytes)), "unsupported_media_type");
      }
      // The body stays unreadable under the name identity.
      const bytes = request("POST /v2/jobs", gzipSync(job), framing, "Content-Encoding: identity");
      readRefusal(parseRaw(await exchange(gateway.port, bytes)), "invalid_request");
    });
  });
});

test("a body far beyond the limit is refused after all of it was received, so that its client can read why", async () => {
  const bytes = request("POST /v2/jobs", Buffer.alloc(40_000_000, " "), "with its length");
  const socket = net.connect(gateway.port, "127.0.0.1");
  let text = "";
  socket.on("data", (chunk: Buffer) => (text += chunk.toString("latin1")));
  socket.write(bytes.subarray(0, BODY_BYTES_MAX * 2));
  await expectServed(gateway, project);
  expect(text).toBe("");
  socket.write(bytes.subarray(BODY_BYTES_MAX * 2));
  await once(socket, "close");
  readRefusal(parseRaw(text), "payload_too_large");
});

test("the largest bodies leave nothing in memory, whether accepted or refused", async () => {
  const sizeNow = () => {
    Bun.gc(true);
    const { heapSize, extraMemorySize } = heapStats();
    return heapSize + extraMemorySize;
  };
  const accepted = `{"jobs":[${Array<string>(40).fill(jobOf(payloadOf(PAYLOAD_BYTES_MAX, "\\n")))}]}`;
  const refused = `{"jobs":[${jobOf(`[${"{},".repeat(3_500_000)}{}]`)}]}`;
  const post = (body: string) => gateway.call("POST", "/v2/jobs/batch", { key: project.production, body });
  let first = await post(accepted);
  // A slow machine may not write so much in the time of a statement.
  for (let again = 0; again < POSTED_AGAIN_MAX && first.status === 503; again++) first = await post(accepted);
  expect(first.status).toBe(201);
  const before = sizeNow();
  for (const body of [accepted, refused, refused, accepted]) await post(body);
  let after = Number.POSITIVE_INFINITY;
  // A turn of the event loop and an abandoned statement may hold some bodies a little longer.
  await until(
    () => {
      after = sizeNow();
      return after < before + HEAP_MARGIN_BYTES;
    },
    () => `${after} bytes, ${before} before`,
  );
});
