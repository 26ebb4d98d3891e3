import { describe, expect, test } from "bun:test";
import { type JobHistory, type RunFacts, TIMELINE_ENTRIES_MAX, timelineOf } from "./timeline.ts";

const NOW = Date.parse("2026-11-23T12:00:00.000Z");
const CREATED = NOW - 60_000;

describe("a timeline", () => {
  const run = (attempt: number, wish: Partial<RunFacts> = {}): RunFacts => ({
    id: `run_${attempt}`,
    attempt,
    madeAt: CREATED + attempt * 10_000,
    startedAt: CREATED + attempt * 10_000,
    endedAt: CREATED + attempt * 10_000 + 50,
    status: "failed",
    responseStatus: 500,
    durationMs: 50,
    nextRetryAt: null,
    lateMs: 4,
    heldFor: null,
    ...wish,
  });
  const history = (wish: Partial<JobHistory> = {}): JobHistory => ({
    status: "queued",
    createdAt: CREATED,
    runAt: CREATED,
    maxAttempts: 2,
    runs: [],
    nextDueAt: null,
    canceledAt: null,
    events: [],
    deliveries: [],
    ...wish,
  });
  const told = (wish: Partial<JobHistory>) =>
    timelineOf(history(wish), NOW).map(
      ({ at, event, ...rest }) => `${at - CREATED} ${event} ${JSON.stringify(rest)}`,
    );

  test("tells of attempts, planned ones and those that were asked for by hand, in the order in which they happened", () => {
    const runs = [
      run(1, { nextRetryAt: CREATED + 19_000, heldFor: "concurrency", lateMs: 10_000 }),
      run(2, { status: "timed_out", responseStatus: null, lateMs: 1_000 }),
      run(3, { madeAt: CREATED + 29_998, status: "succeeded", responseStatus: 204, lateMs: 2 }),
    ];
    const events = [{ id: "evt_1", type: "job.failed" as const, createdAt: CREATED + 20_050 }];
    const deliveries = [
      {
        eventId: "evt_1",
        webhookId: "whk_1",
        isDelivered: true,
        responseStatus: 200,
        endedAt: CREATED + 20_070,
      },
      {
        eventId: "evt_1",
        webhookId: "whk_2",
        isDelivered: false,
        responseStatus: null,
        endedAt: CREATED + 20_060,
      },
    ];
    expect(told({ status: "succeeded", runs, events, deliveries })).toEqual([
      "0 created {}",
      '0 due {"attempt":1}',
      '10000 started {"runId":"run_1","attempt":1,"lateMs":10000,"heldFor":"concurrency"}',
      '10050 ended {"runId":"run_1","attempt":1,"status":"failed","responseStatus":500,"durationMs":50}',
      `10050 retry_planned {"attempt":2,"dueAt":${CREATED + 19_000}}`,
      '19000 due {"attempt":2}',
      '20000 started {"runId":"run_2","attempt":2,"lateMs":1000,"heldFor":null}',
      '20050 ended {"runId":"run_2","attempt":2,"status":"timed_out","responseStatus":null,"durationMs":50}',
      '20050 event_created {"eventId":"evt_1","type":"job.failed"}',
      '20060 event_failed {"eventId":"evt_1","webhookId":"whk_2","responseStatus":null}',
      '20070 event_delivered {"eventId":"evt_1","webhookId":"whk_1","responseStatus":200}',
      '29998 due {"attempt":3}',
      '29998 retry_requested {"runId":"run_3","attempt":3}',
      '30000 started {"runId":"run_3","attempt":3,"lateMs":2,"heldFor":null}',
      '30050 ended {"runId":"run_3","attempt":3,"status":"succeeded","responseStatus":204,"durationMs":50}',
    ]);
  });

  test("counts how late a run of before was from what is left of it, and says nothing where nothing is left", () => {
    const late = (runs: RunFacts[]) =>
      timelineOf(history({ runs }), NOW).flatMap((entry) =>
        entry.event === "started" ? [entry.lateMs] : [],
      );
    const unknown = { lateMs: null };
    expect(late([run(1, { ...unknown, nextRetryAt: CREATED + 19_400 }), run(2, unknown)])).toEqual([
      10_000, 600,
    ]);
    // The first attempt has left retention. The third was beyond the policy, so it was asked for by hand.
    expect(late([run(2, unknown)])).toEqual([null]);
    expect(late([run(3, { ...unknown, madeAt: CREATED + 29_990 })])).toEqual([10]);
  });

  test("tells what is due only once it is, and of a cancel what had come before it", () => {
    const future = { runAt: NOW + 1, nextDueAt: NOW + 1 };
    expect(told(future)).toEqual(["0 created {}"]);
    expect(told({ runAt: NOW, nextDueAt: NOW })).toEqual(["0 created {}", '60000 due {"attempt":1}']);
    expect(told({ status: "canceled", runAt: NOW, canceledAt: CREATED + 5 })).toEqual([
      "0 created {}",
      "5 cancel_requested {}",
    ]);
    expect(told({ status: "canceled", runAt: CREATED - 9_000, canceledAt: CREATED + 5 })).toEqual([
      "0 created {}",
      '0 due {"attempt":1}',
      "5 cancel_requested {}",
    ]);
  });

  test("tells no start of a run that was asked for by hand and given up before it was sent", () => {
    const given = run(2, { startedAt: null, madeAt: CREATED + 9, endedAt: CREATED + 12, durationMs: 0 });
    expect(
      told({ status: "canceled", runs: [run(1, { startedAt: CREATED, endedAt: CREATED + 5 }), given] }),
    ).toEqual([
      "0 created {}",
      '0 due {"attempt":1}',
      '0 started {"runId":"run_1","attempt":1,"lateMs":4,"heldFor":null}',
      '5 ended {"runId":"run_1","attempt":1,"status":"failed","responseStatus":500,"durationMs":50}',
      '9 due {"attempt":2}',
      '9 retry_requested {"runId":"run_2","attempt":2}',
      '12 ended {"runId":"run_2","attempt":2,"status":"failed","responseStatus":500,"durationMs":0}',
    ]);
  });

  test("of more entries than fit has the latest", () => {
    const runs = Array.from({ length: 600 }, (_, index) => run(index + 1));
    const timeline = timelineOf(history({ runs }), NOW + 86_400_000);
    expect(timeline).toHaveLength(TIMELINE_ENTRIES_MAX);
    expect(timeline.at(-1)).toMatchObject({ event: "ended", attempt: 600 });
  });
});
