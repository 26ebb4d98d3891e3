import { afterEach, describe, expect, test } from "bun:test";
import type net from "node:net";
import { gzipSync } from "node:zlib";
import { ERROR_BYTES_MAX } from "../../shared/domain/run.ts";
import type { Settlement } from "../../shared/store/queue/settle.ts";
import { answerOf, startRawServer } from "../../test/runtime-contract/raw-server.ts";
import { type Sending, sendAttempt } from "./job-request.ts";
import { type Outbound, openOutbound } from "./outbound.ts";

const NOW = Date.parse("2026-05-01T12:00:00.000Z");
const ATTEMPT_TIMEOUT_MS = 10_000;
/** Long enough to read all that a host has sent, even on a busy machine. */
const HEARD_MS = 9_000;
const SECRET = `whsec_${Buffer.alloc(32, 1).toString("base64")}`;

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Wish {
  sending?: Partial<Sending>;
  granted?: Partial<Sending["granted"]>;
  /** Since the recorded start. */
  elapsedMs?: number;
  shutdown?: AbortSignal;
  targetUrl?: string;
  /** Replaces the real exchange, for cases that no host can time. */
  post?: Outbound["post"];
}

/** Sends one attempt to a host that behaves as `answer` says. */
async function attemptAt(
  answer: Parameters<typeof startRawServer>[0],
  wish: Wish = {},
): Promise<Settlement & { requests: string[] }> {
  const server = await startRawServer(answer);
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  closing.push(
    () => server.stop(),
    () => outbound.close(),
  );
  const settlement = await sendAttempt(
    {
      projectNo: 7,
      environment: "development",
      region: "eu-central",
      shard: 3,
      attempt: 2,
      host: "127.0.0.1",
      secrets: [SECRET],
      span: null,
      ...wish.sending,
      granted: {
        jobId: "job_1",
        runId: "run_1",
        attemptsAllowed: 5,
        scheduledAt: NOW - 1_000,
        startedAt: NOW - (wish.elapsedMs ?? 0),
        askedAt: null,
        targetUrl: wish.targetUrl ?? `${server.url}/hook`,
        payload: '{"n":9007199254740993}',
        scheduleId: null,
        isTagged: false,
        maxAttempts: 5,
        baseSeconds: 10,
        capSeconds: 60,
        trace: { traceId: "4bf92f3577b34da6a3ce929d0e0e4736", spanId: "00f067aa0ba902b7", isSampled: true },
        ...wish.granted,
      },
    },
    {
      outbound: wish.post === undefined ? outbound : { ...outbound, post: wish.post },
      clock: { now: () => NOW, stop() {} },
      timeoutMs: ATTEMPT_TIMEOUT_MS,
      shutdown: wish.shutdown ?? new AbortController().signal,
    },
  );
  return { ...settlement, requests: server.requests };
}

const says =
  (...args: Parameters<typeof answerOf>) =>
  (socket: net.Socket) =>
    socket.write(answerOf(...args));

/** Milliseconds until the next attempt. */
const waitOf = ({ next }: Settlement) => (next.status === "queued" ? next.waitMs : null);

describe("an attempt", () => {
  test("tells the target which attempt of which job it is, and nothing else", async () => {
    const { requests } = await attemptAt(says("200 OK"), { granted: { scheduleId: "sch_1" } });
    const [head = "", body] = requests[0]?.split("\r\n\r\n") ?? [];
    const headers = new Map(
      head
        .split("\r\n")
        .slice(1)
        .map((line) => line.split(": ") as [string, string]),
    );
    expect(body).toBe('{"n":9007199254740993}');
    expect([...headers.keys()].sort()).toEqual([
      "connection",
      "content-length",
      "content-type",
      "host",
      "idempotency-key",
      "service-attempt",
      "service-attempt-fence",
      "service-environment",
      "service-job-id",
      "service-run-id",
      "service-schedule-id",
      "service-scheduled-at",
      "service-signature",
      "traceparent",
      "user-agent",
      "webhook-id",
      "webhook-signature",
      "webhook-timestamp",
    ]);
    expect(Object.fromEntries(headers)).toMatchObject({
      "content-type": "application/json",
      "idempotency-key": "job_1",
      "service-attempt": "2",
      "service-attempt-fence": "2",
      "service-environment": "development",
      "service-schedule-id": "sch_1",
      "service-scheduled-at": "2026-05-01T11:59:59.000Z",
      "webhook-id": "run_1",
    });
    expect(headers.get("traceparent")).toBe("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  });

  test("is not sent unsigned", async () => {
    const settlement = await attemptAt(says("200 OK"), { sending: { secrets: [] } });
    expect(settlement).toMatchObject({ status: "failed", responseStatus: null, requests: [] });
  });

  test.each([200, 204, 299])("that is answered %d has succeeded", async (status) => {
    const settlement = await attemptAt(
      says(`${status} Good`, status === 204 ? { "content-length": "0" } : {}),
    );
    expect(settlement).toMatchObject({
      status: "succeeded",
      responseStatus: status,
      error: null,
      next: { status: "succeeded" },
    });
  });

  test("that is redirected has failed, names the Location, and is retried", async () => {
    const settlement = await attemptAt(says("301 Moved", { location: "https://elsewhere.example/x" }));
    expect(settlement).toMatchObject({ status: "failed", responseStatus: 301, next: { status: "queued" } });
    expect(settlement.error).toContain("https://elsewhere.example/x");
    expect(settlement.requests.length).toBe(1);
  });

  test("that stalls in the body of a 200 is timed_out with that status", async () => {
    const settlement = await attemptAt(
      (socket) => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
      { elapsedMs: ATTEMPT_TIMEOUT_MS - HEARD_MS },
    );
    expect(settlement).toMatchObject({
      status: "timed_out",
      responseStatus: 200,
      next: { status: "queued" },
    });
  });

  test("has no more than its time, although the node's clock is behind the one of its start", async () => {
    let givenMs = 0;
    await attemptAt(says("200 OK"), {
      elapsedMs: -20_000,
      async post({ timeoutMs }) {
        givenMs = timeoutMs;
        return { kind: "stalled" };
      },
    });
    expect(givenMs).toBe(ATTEMPT_TIMEOUT_MS);
  });

  test("has its whole time, although the database's clock was set back since the node measured it", async () => {
    let givenMs = 0;
    await attemptAt(says("200 OK"), {
      elapsedMs: 3_600_000,
      granted: { askedAt: performance.now() - 1_000 },
      async post({ timeoutMs }) {
        givenMs = timeoutMs;
        return { kind: "stalled" };
      },
    });
    expect(givenMs).toBeGreaterThan(0);
    expect(givenMs).toBeLessThanOrEqual(ATTEMPT_TIMEOUT_MS - 1_000);
  });

  test("has its deadline counted from when its claim was asked for", async () => {
    const granted = { askedAt: performance.now() - ATTEMPT_TIMEOUT_MS };
    const settlement = await attemptAt(says("200 OK"), { granted });
    expect(settlement).toMatchObject({ status: "timed_out", requests: [] });
  });

  test("has its deadline counted from its recorded start if an earlier claim had begun it", async () => {
    const settlement = await attemptAt(() => {}, { elapsedMs: ATTEMPT_TIMEOUT_MS - 200 });
    expect(settlement).toMatchObject({ status: "timed_out", responseStatus: null });
    expect(settlement.durationMs).toBeLessThan(ATTEMPT_TIMEOUT_MS - 1_000);
  });

  test("is not sent once its time is over, says so, and tells nothing about its host", async () => {
    const settlement = await attemptAt(says("200 OK"), { elapsedMs: ATTEMPT_TIMEOUT_MS });
    expect(settlement).toMatchObject({
      status: "timed_out",
      responseStatus: null,
      error: "The time of this attempt was over before anything was sent.",
      next: { status: "queued" },
      requests: [],
    });
    expect(settlement.met).toBeUndefined();
  });

  test("whose 200 breaks off has failed with that status", async () => {
    const settlement = await attemptAt((socket) =>
      socket.end("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"),
    );
    expect(settlement).toMatchObject({ status: "failed", responseStatus: 200, next: { status: "queued" } });
  });

  test("whose 200 has no end has succeeded", async () => {
    const settlement = await attemptAt((socket) =>
      socket.write(`HTTP/1.1 200 OK\r\n\r\n${"x".repeat(70_000)}`),
    );
    expect(settlement).toMatchObject({ status: "succeeded", responseStatus: 200 });
  });

  test("waits as long as 429 and 503 ask for, up to the cap, and no other status", async () => {
    const asked = { "retry-after": "50" };
    expect(waitOf(await attemptAt(says("429 Slow", asked)))).toBe(50_000);
    expect(waitOf(await attemptAt(says("503 Busy", { "retry-after": "3600" })))).toBe(60_000);
    const date = new Date(NOW + 45_000).toUTCString();
    expect(waitOf(await attemptAt(says("503 Busy", { "retry-after": date })))).toBe(45_000);
    expect(waitOf(await attemptAt(says("500 Bad", asked)))).toBeLessThanOrEqual(20_000);
  });

  test("waits for the policy's cap if it is asked to wait for longer than any number holds", async () => {
    for (const digits of [11, 20, 400]) {
      const asked = { "retry-after": "9".repeat(digits) };
      expect(waitOf(await attemptAt(says("503 Busy", asked)))).toBe(60_000);
    }
  });

  test("keeps a body in a content coding by its name and its length", async () => {
    const packed = gzipSync("out of stock");
    const { error } = await attemptAt((socket) => {
      socket.write(`HTTP/1.1 500 Bad\r\ncontent-encoding: GZip\r\ncontent-length: ${packed.length}\r\n\r\n`);
      socket.write(packed);
    });
    expect(error).toBe(`(gzip, ${packed.length} bytes)`);
  });

  test("is the last if the target says so, or if none is left", async () => {
    const told = await attemptAt(says("500 Bad", { "service-no-retry": "true" }));
    expect(told).toMatchObject({ status: "failed", next: { status: "failed" } });
    const last = await attemptAt(says("500 Bad"), { sending: { attempt: 5 } });
    expect(last).toMatchObject({ status: "failed", next: { status: "failed" } });
  });

  test("never ends in an exception, whatever the URL", async () => {
    const settlement = await attemptAt(says("200 OK"), { targetUrl: "not a url" });
    expect(settlement).toMatchObject({ status: "failed", responseStatus: null, requests: [] });
  });

  const chunk = (bytes: Buffer) => (socket: net.Socket) => {
    socket.write(`HTTP/1.1 500 Bad\r\ncontent-length: ${bytes.length}\r\n\r\n`);
    socket.write(bytes);
  };
  test.each([
    ["the target's text", Buffer.from("it broke\n\there"), /^it broke\n\there$/],
    ["bytes that are not UTF-8", Buffer.from([0xff, 0xfe, 0x00, 0x41]), /^\ufffd\ufffd\ufffdA$/],
    ["control characters", Buffer.from("a\u0000b\u001b[31mc\u0085d"), /^a\ufffdb\ufffd\[31mc\ufffdd$/],
    ["a long text cut between characters", Buffer.from("🎡".repeat(10_000)), /^(🎡)+$/u],
    ["nothing", Buffer.from(""), /500/],
  ])("keeps as its error %s", async (_what, bytes, pattern) => {
    const { error } = await attemptAt(chunk(bytes));
    expect(error).toMatch(pattern);
    expect(Buffer.byteLength(error ?? "")).toBeLessThanOrEqual(ERROR_BYTES_MAX);
  });

  test.each([
    ["a reset", (socket: net.Socket) => socket.resetAndDestroy()],
    ["garbage", (socket: net.Socket) => socket.end("\u0000\u001b[31m\u0007\r\n\r\n")],
    ["a huge Location", says("302 Found", { location: `/${"x".repeat(20_000)}` })],
    [
      "a Location of odd bytes",
      (socket: net.Socket) =>
        socket.end(
          Buffer.from("HTTP/1.1 302 Found\r\nlocation: /\xff\xfe\x80\r\ncontent-length: 0\r\n\r\n", "latin1"),
        ),
    ],
  ])("has a printable error of at most 4,096 bytes after %s", async (_what, answer) => {
    const { error, status } = await attemptAt((socket) => void answer(socket));
    expect(status).toBe("failed");
    expect(error).not.toBe("");
    // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for.
    expect(error).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/);
    expect(error?.isWellFormed()).toBe(true);
    expect(Buffer.byteLength(error ?? "")).toBeLessThanOrEqual(ERROR_BYTES_MAX);
  });
});

describe("a shutdown that cannot wait", () => {
  const INTERRUPTED = {
    status: "failed",
    error: "interrupted by a shutdown",
    next: { status: "queued", waitMs: 0 },
  };

  test("ends an attempt as failed and has it retried at once", async () => {
    const shutdown = new AbortController();
    const settlement = await attemptAt(() => shutdown.abort(), { shutdown: shutdown.signal });
    expect(settlement).toMatchObject({ ...INTERRUPTED, responseStatus: null });
  });

  test("says so too if the target had begun to answer 200, and keeps the status", async () => {
    const shutdown = new AbortController();
    const settlement = await attemptAt(says("200 OK"), {
      shutdown: shutdown.signal,
      post: async () => {
        shutdown.abort();
        const headers = { location: null, retryAfter: null, serviceNoRetry: null, contentEncoding: null };
        return {
          kind: "answered",
          status: 200,
          headers,
          body: new Uint8Array(),
          bodyBytes: 0,
          bodyEnd: "broken",
        };
      },
    });
    expect(settlement).toMatchObject({ ...INTERRUPTED, responseStatus: 200 });
  });

  test("does not hide that the deadline had come before it", async () => {
    const shutdown = new AbortController();
    const settlement = await attemptAt(says("200 OK"), {
      shutdown: shutdown.signal,
      post: async () => {
        shutdown.abort();
        return { kind: "stalled" };
      },
    });
    expect(settlement.status).toBe("timed_out");
  });

  test("sends nothing that was claimed after it", async () => {
    const settlement = await attemptAt(says("200 OK"), { shutdown: AbortSignal.abort() });
    expect(settlement).toMatchObject({ ...INTERRUPTED, requests: [] });
  });

  test("is the failure of the last attempt if none is left", async () => {
    const settlement = await attemptAt(says("200 OK"), {
      shutdown: AbortSignal.abort(),
      sending: { attempt: 5 },
    });
    expect(settlement).toMatchObject({ status: "failed", next: { status: "failed" } });
  });
});
