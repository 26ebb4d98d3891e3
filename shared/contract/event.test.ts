import { describe, expect, test } from "bun:test";
import { Event } from "./event.ts";
import { type EventFacts, eventText } from "./event-text.ts";
import { validatorOf } from "./validator.ts";

const ID_BODY = "01m7ybr3vq81qbcnqxb2xa9jzd";
const facts = {
  id: `evt_${ID_BODY}`,
  type: "job.failed",
  occurredAt: Date.UTC(2026, 10, 21, 6, 12, 25, 618),
  apiVersion: "2026-11-01",
  projectId: `prj_${ID_BODY}`,
  environment: "production",
  job: {
    id: "job_01m7ybr3kgsnpd4n830jn3f3ba",
    targetUrl: "https://example.com/hook?a=ü",
    region: "eu-central",
    attempts: 2,
    scheduleId: null,
    createdAt: Date.UTC(2026, 10, 21, 6, 12, 20),
    tags: null,
  },
  run: {
    id: `run_${ID_BODY}`,
    attempt: 2,
    status: "timed_out",
    responseStatus: null,
    error: 'line\n"quoted"\u2028',
    startedAt: Date.UTC(2026, 10, 21, 6, 12, 25, 592),
    durationMs: 26,
  },
} as const satisfies EventFacts;
const validate = validatorOf(Event);

describe("the body of an event", () => {
  test("shows the job without its payload, and its last run", () => {
    expect(validate(JSON.parse(eventText(facts)))).toEqual({
      id: facts.id,
      type: "job.failed",
      created_at: "2026-11-21T06:12:25.618Z",
      api_version: "2026-11-01",
      project_id: facts.projectId,
      environment: "production",
      data: {
        job: {
          id: facts.job.id,
          status: "failed",
          target_url: facts.job.targetUrl,
          region: "eu-central",
          attempts: 2,
          schedule_id: null,
          created_at: "2026-11-21T06:12:20.000Z",
        },
        run: {
          id: facts.run.id,
          job_id: facts.job.id,
          attempt: 2,
          status: "timed_out",
          response_status: null,
          error: facts.run.error,
          started_at: "2026-11-21T06:12:25.592Z",
          duration_ms: 26,
          next_retry_at: null,
        },
      },
    });
  });

  test("has the same bytes on every rendering, whatever the order of its facts", () => {
    const { job, run, ...event } = facts;
    const turned = (fields: object) => Object.fromEntries(Object.entries(fields).reverse());
    const again = turned({ ...event, job: turned(job), run: turned(run) }) as unknown as EventFacts;
    expect(eventText(again)).toBe(eventText(facts));
    // Fractions of a millisecond are not shown, so they may differ between readings.
    expect(eventText({ ...facts, occurredAt: facts.occurredAt + 0.4 })).toBe(eventText(facts));
  });

  test("tells that a job has succeeded", () => {
    const run = { ...facts.run, status: "succeeded" as const, responseStatus: 204, error: null };
    const { data } = validate(JSON.parse(eventText({ ...facts, type: "job.succeeded", run })));
    expect(data).toMatchObject({ job: { status: "succeeded" } });
  });

  test("tells of a canceled job with its last run, be it in progress, ended or none", () => {
    const { run, ...rest } = facts;
    const canceled = { ...rest, type: "job.canceled" } as const;
    const bodyOf = (last: Parameters<typeof eventText>[0]) => validate(JSON.parse(eventText(last)));
    const running = { ...run, status: "running", error: null, durationMs: null } as const;
    for (const last of [run, running]) {
      expect(bodyOf({ ...canceled, run: last }).data).toMatchObject({
        job: { id: facts.job.id, status: "canceled", attempts: 2 },
        run: { id: run.id, status: last.status, duration_ms: last.durationMs, next_retry_at: null },
      });
    }
    const none = bodyOf({ ...canceled, job: { ...facts.job, attempts: 0 }, run: null });
    expect(none.data).toMatchObject({ job: { status: "canceled", attempts: 0 }, run: null });
  });

  test("tells of one missed firing as the ledger does, and of several as a stretch", () => {
    const { job: _, run: __, ...head } = facts;
    const schedule = { id: `sch_${ID_BODY}`, name: "nightly" };
    const fromAt = Date.UTC(2026, 10, 21, 6);
    const told = (toAt: number, count: number) =>
      validate(
        JSON.parse(
          eventText({ ...head, type: "schedule.firing_missed", schedule, missed: { fromAt, toAt, count } }),
        ),
      ).data;
    expect(told(fromAt, 1)).toEqual({
      schedule,
      firing: { at: "2026-11-21T06:00:00.000Z", status: "missed_outage", job_id: null },
    });
    expect(told(fromAt + 60_000, 2)).toEqual({
      schedule,
      firing: {
        from: "2026-11-21T06:00:00.000Z",
        to: "2026-11-21T06:01:00.000Z",
        count: 2,
        status: "missed_outage",
      },
    });
  });

  test("tells of a skipped firing as the ledger does", () => {
    const { job: _, run: __, ...head } = facts;
    const schedule = { id: `sch_${ID_BODY}`, name: "nightly" };
    const at = Date.UTC(2026, 10, 21, 6);
    const skipped = {
      ...head,
      type: "schedule.firing_skipped",
      schedule,
      at,
      status: "skipped_quota",
    } as const;
    expect(validate(JSON.parse(eventText(skipped))).data).toEqual({
      schedule,
      firing: { at: "2026-11-21T06:00:00.000Z", status: "skipped_quota", job_id: null },
    });
  });
});
