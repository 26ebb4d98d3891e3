import { describe, expect, spyOn, test } from "bun:test";
import { randomBytes } from "node:crypto";
import {
  type Attempt,
  createMemory,
  NoRetry,
  RetryLater,
  receive,
} from "../../../shared/client/receive/index.ts";
import { makeSecret } from "../../../shared/domain/signing.ts";
import { answerOf, attemptRequest, eventRequest, listen, type Sent, secret } from "./support.ts";

const SECOND_MS = 1_000;
const MINUTE_MS = 60_000;

describe("a receiver of attempts", () => {
  test("hands over the payload and the facts of the headers, typed", async () => {
    const seen: Attempt<{ invoice: number }>[] = [];
    const { receiver } = listen<{ invoice: number }>({ onAttempt: (attempt) => seen.push(attempt) });
    const text = '{"invoice": 9007199254740993}';
    const headers = { "service-schedule-id": "sch_1", traceparent: "00-1-2-01" };
    expect(await answerOf(receiver(attemptRequest({ text, headers })))).toEqual({ status: 200, text: "ok" });
    expect(seen).toEqual([
      {
        kind: "attempt",
        payload: JSON.parse(text),
        text,
        jobId: "job_1",
        runId: "run_job_1_1",
        attempt: 1,
        scheduledAt: new Date("2026-09-21T14:13:20.000Z"),
        scheduleId: "sch_1",
        environment: "production",
        idempotencyKey: "job_1",
        traceparent: "00-1-2-01",
      },
    ]);
  });

  test.each<[string, Sent, number, string]>([
    ["another secret", { secrets: [makeSecret(randomBytes)] }, 401, "signature"],
    ["a time long ago", { sentAt: 1_790_000_000_000 - 6 * MINUTE_MS }, 401, "signature"],
    ["a body that is no object", { text: "[]" }, 400, "unreadable"],
    ["another run in its headers", { headers: { "service-run-id": "run_2" } }, 400, "unreadable"],
    ["no number of its attempt", { headers: { "service-attempt-fence": "x" } }, 400, "unreadable"],
    ["no instant", { headers: { "service-scheduled-at": "soon" } }, 400, "unreadable"],
    ["an unknown environment", { headers: { "service-environment": "test" } }, 400, "unreadable"],
    ["an id of neither kind", { runId: "msg_1" }, 400, "unreadable"],
    ["more than any payload", { text: JSON.stringify({ x: "x".repeat(1_048_576) }) }, 413, "too_large"],
  ])("refuses %s", async (_, sent, status, reason) => {
    const { receiver, refusals } = listen({ onAttempt: () => expect.unreachable() });
    const answer = await answerOf(receiver(attemptRequest(sent)));
    expect(answer.status).toBe(status);
    expect(answer.text).toStartWith(`${reason}: `);
    expect(refusals as string[]).toEqual([reason]);
  });

  test("refuses what is no POST, and events where only attempts are handled", async () => {
    const { receiver, refusals } = listen({ onAttempt: () => expect.unreachable() });
    expect((await receiver(new Request("https://example.com/hook"))).status).toBe(405);
    expect((await receiver(eventRequest())).status).toBe(404);
    expect(refusals).toEqual(["method", "unexpected"]);
  });

  test("refuses the same attempt again, also with other headers, for as long as its signature holds", async () => {
    const seen: string[] = [];
    const { receiver, refusals, clock } = listen({ onAttempt: ({ runId }) => seen.push(runId) });
    const sentAt = clock.now + 300 * SECOND_MS;
    expect((await receiver(attemptRequest({ sentAt }))).status).toBe(200);
    clock.now += 600 * SECOND_MS + 999;
    const forged = { "service-job-id": "job_2", "service-attempt-fence": "7" };
    expect((await receiver(attemptRequest({ sentAt, headers: forged }))).status).toBe(409);
    clock.now += 1;
    expect((await receiver(attemptRequest({ sentAt, headers: forged }))).status).toBe(401);
    expect([seen, refusals]).toEqual([["run_job_1_1"], ["replay", "signature"]]);
  });

  test("refuses an attempt that comes after a later one of its job, and takes those of other jobs", async () => {
    const seen: string[] = [];
    const { receiver, refusals } = listen({ onAttempt: ({ runId }) => seen.push(runId) });
    // After a restore of its database the service may reuse the number of an attempt that it no longer knows.
    const restored = { attempt: 3, runId: "run_restored" };
    for (const sent of [{ attempt: 2 }, { attempt: 1 }, { attempt: 3 }, restored, { jobId: "job_2" }]) {
      await receiver(attemptRequest(sent));
    }
    expect(seen).toEqual(["run_job_1_2", "run_job_1_3", "run_restored", "run_job_2_1"]);
    expect(refusals).toEqual(["late"]);
  });

  test("answers typed errors by what the service understands, and tells nothing of others", async () => {
    const date = new Date("2026-09-21T15:00:00.000Z");
    const errors = [
      new RetryLater("busy", { after: 0.2 }),
      new RetryLater("busy", { after: date }),
      new RetryLater(),
      new NoRetry("no such invoice"),
      new Error("password=1234"),
    ];
    const reported: unknown[] = [];
    const { receiver } = listen({
      onAttempt: ({ attempt }) => Promise.reject(errors[attempt - 1]),
      onError: (error) => reported.push(error),
    });
    const answers: unknown[] = [];
    for (const attempt of [1, 2, 3, 4, 5]) {
      const { status, headers, ...response } = await receiver(attemptRequest({ attempt })).then(
        async (answer) => ({ status: answer.status, headers: answer.headers, text: await answer.text() }),
      );
      answers.push([status, headers.get("retry-after"), headers.get("service-no-retry"), response.text]);
    }
    expect(answers).toEqual([
      [503, "1", null, "busy"],
      [503, "Mon, 21 Sep 2026 15:00:00 GMT", null, "busy"],
      [503, null, null, "Try again later."],
      [422, null, "true", "no such invoice"],
      [500, null, null, "The handler has failed."],
    ]);
    expect(reported).toEqual([errors[4]]);
  });

  test("answers also where nobody can be told of it", async () => {
    const { receiver } = listen({
      onAttempt: () => undefined,
      onRefusal() {
        throw new Error("no log");
      },
    });
    const complaints = spyOn(console, "error").mockImplementation(() => undefined);
    expect((await receiver(attemptRequest({ text: "[]" }))).status).toBe(400);
    expect(complaints.mock.calls).toEqual([[new Error("no log")]]);
    complaints.mockRestore();
  });

  test("fails an attempt while its memory does not answer", async () => {
    const { receiver } = listen({
      onAttempt: () => expect.unreachable(),
      onError: () => undefined,
      memory: { ...createMemory(), begin: () => Promise.reject(new Error("no connection")) },
    });
    expect((await receiver(attemptRequest())).status).toBe(500);
  });
});

describe("a receiver cannot be made", () => {
  test.each([[undefined], [""], [[]], ["whsec_"], [[secret, undefined]]])(
    "with the secrets %p",
    (secrets) => {
      const made = () => receive({ secrets: secrets as string, onAttempt: () => undefined });
      expect(made).toThrow(TypeError);
      expect(made).toThrow("set that variable first");
    },
  );

  test("without a handler", () => {
    expect(() => receive({ secrets: secret })).toThrow("needs onAttempt or onEvent");
  });

  test.each([[undefined], [""], [[]], ["dG9vIHNob3J0"], [new Uint8Array(31)]])(
    "with the keys %p",
    (openWith) => {
      const made = () =>
        receive({ secrets: secret, onAttempt: () => undefined, openWith: openWith as string });
      expect(made).toThrow(TypeError);
    },
  );
});
