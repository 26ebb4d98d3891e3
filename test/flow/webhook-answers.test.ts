import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type net from "node:net";
import { answerOf, type RawServer, startRawServer } from "../runtime-contract/raw-server.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget, type Target } from "../support/target.ts";
import { until, untilEnded } from "./support.ts";

const WEBHOOK_TIMEOUT_MS = 8_000;
/** The scale turns waits of 5 s into 50 ms, and 48 h into half an hour. */
const RETRY_SCALE = 0.01;
/** A head that promises more bytes than ever come. */
const HALF = "content-length: 100\r\n\r\nhalf";

let cell: Cell;
let delivery: { stop(): Promise<void> };
let jobs: Target;
let endpoint: RawServer;
beforeEach(async () => {
  cell = await startCell();
  const options = { webhookTimeoutMs: WEBHOOK_TIMEOUT_MS, webhookRetryScale: RETRY_SCALE, drainTimeoutMs: 0 };
  await cell.startWorker(options);
  delivery = await cell.startDelivery(options);
  jobs = startTarget();
});
afterEach(async () => {
  await cell.stop();
  await Promise.all([jobs.stop(), endpoint.stop()]);
});

/** Ends a job of a project whose endpoint answers by `answer`. `place` counts its requests from 1. */
async function tell(answer: (socket: net.Socket, place: number) => void): Promise<void> {
  endpoint = await startRawServer((socket, _request, place) => answer(socket, place));
  const project = await cell.addProject();
  await cell.addEndpoint(project, { url: `${endpoint.url}/hook` });
  const [jobId = ""] = await cell.addJobs(project, [{ targetUrl: jobs.url }]);
  await untilEnded(cell, project, jobId);
}

const attempts = () =>
  cell.db.run<{ status: number; response_status: number | null; error: string | null }>(
    "test_attempts",
    "SELECT status, response_status, error FROM delivery_attempts ORDER BY attempt",
    [],
  );
const [SUCCEEDED, FAILED, TIMED_OUT] = [1, 2, 3];

/** Waits until the delivery is over. Answers its status and attempts. */
async function untilOver(): Promise<{ status: number; attempts: number }> {
  return until(async () => {
    const rows = await cell.db.run<{ status: number; attempts: number }>(
      "test_ended",
      "SELECT status, attempts FROM ended_deliveries",
      [],
    );
    return rows[0];
  });
}
const [OVER_SUCCEEDED, OVER_FAILED] = [0, 1];

describe("an endpoint's answer", () => {
  test.each([
    ["stalls", (socket: net.Socket) => void socket.write(`HTTP/1.1 200 OK\r\n${HALF}`)],
    ["breaks off", (socket: net.Socket) => void socket.end(`HTTP/1.1 204 OK\r\n${HALF}`)],
  ])("of 2xx is a success and nothing is sent twice, although its body %s", async (_, answer) => {
    await tell(answer);
    expect(await untilOver()).toEqual({ status: OVER_SUCCEEDED, attempts: 1 });
    expect(endpoint.requests).toHaveLength(1);
  });

  test("of 3xx is a failure: it is not followed, and the same event comes again", async () => {
    const elsewhere = startTarget();
    await tell((socket, place) =>
      socket.write(place === 1 ? answerOf("307 Moved", { location: elsewhere.url }) : answerOf("200 OK")),
    );
    expect(await untilOver()).toEqual({ status: OVER_SUCCEEDED, attempts: 2 });
    expect(await attempts()).toMatchObject([
      { status: FAILED, response_status: 307, error: expect.stringContaining("redirects are not followed") },
      { status: SUCCEEDED, response_status: 200 },
    ]);
    expect(elsewhere.arrivals).toHaveLength(0);
    await elsewhere.stop();
  });

  test("of 410 ends the delivery, and leaves the endpoint as it is", async () => {
    await tell((socket) => socket.write(answerOf("410 Gone")));
    expect(await untilOver()).toEqual({ status: OVER_FAILED, attempts: 1 });
    expect(await cell.db.run("test_enabled", "SELECT enabled FROM webhooks", [])).toEqual([
      { enabled: true },
    ]);
  });

  test("beyond the time limit is timed out, and the same event comes again", async () => {
    await tell((socket, place) => void (place > 1 && socket.write(answerOf("200 OK"))));
    expect(await untilOver()).toEqual({ status: OVER_SUCCEEDED, attempts: 2 });
    expect(await attempts()).toMatchObject([
      { status: TIMED_OUT, response_status: null },
      { status: SUCCEEDED, response_status: 200 },
    ]);
    expect(endpoint.requests[1]?.split("\r\n\r\n")[1]).toBe(endpoint.requests[0]?.split("\r\n\r\n")[1] ?? "");
  });
});

describe("a shutdown in the middle of a delivery", () => {
  test("after the answer's status has come keeps that status as the delivery's outcome", async () => {
    await tell((socket, place) =>
      socket.write(place === 1 ? `HTTP/1.1 200 OK\r\n${HALF}` : answerOf("200 OK")),
    );
    await until(() => endpoint.requests.length === 1);
    // Once the endpoint answers this request, it has read everything that was sent before.
    await fetch(endpoint.url, { method: "POST" });
    await delivery.stop();
    expect(await untilOver()).toEqual({ status: OVER_SUCCEEDED, attempts: 1 });
  });

  test("before the answer has begun breaks it off, and the next node sends it at once", async () => {
    await tell((socket, place) => void (place > 1 && socket.write(answerOf("200 OK"))));
    await until(() => endpoint.requests.length === 1);
    await delivery.stop();
    expect(await attempts()).toMatchObject([
      { status: FAILED, response_status: null, error: "interrupted by a shutdown" },
    ]);
    await cell.startDelivery();
    expect(await untilOver()).toEqual({ status: OVER_SUCCEEDED, attempts: 2 });
  });
});
