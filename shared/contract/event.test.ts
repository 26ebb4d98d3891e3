import { describe, expect, test } from "bun:test";
import { EVENT_TYPES } from "../domain/webhook.ts";
import { Event, type EventFacts, eventText, type RecordedEvent, sampleFacts, sampleRun } from "./event.ts";
import { validatorOf } from "./validator.ts";

const ID_BODY = "01m7ybr3vq81qbcnqxb2xa9jzd";
const facts: EventFacts = {
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
};
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
    expect(data.job.status).toBe("succeeded");
  });
});

describe("a sample", () => {
  const recordedOf = (type: EventFacts["type"]): RecordedEvent => ({
    id: facts.id,
    type,
    occurredAt: facts.occurredAt,
    apiVersion: facts.apiVersion,
    projectId: facts.projectId,
    environment: "development",
    region: "us-east",
    run: { ...sampleRun(type), startedAt: facts.occurredAt - 120 },
  });

  test.each([...EVENT_TYPES])("of %s is an event like any other, from its own row alone", (type) => {
    const event = validate(JSON.parse(eventText(sampleFacts(recordedOf(type)))));
    expect(event).toMatchObject({ id: facts.id, type, environment: "development" });
    const { job, run } = event.data;
    expect([job.id, run.id, run.job_id]).toEqual([`job_${ID_BODY}`, `run_${ID_BODY}`, `job_${ID_BODY}`]);
    expect(job.status as string).toBe(run.status);
    expect(`job.${job.status}`).toBe(type);
    expect(job.attempts).toBe(run.attempt);
    expect((run.error === null) === (type === "job.succeeded")).toBe(true);
    expect(eventText(sampleFacts(recordedOf(type)))).toBe(eventText(sampleFacts(recordedOf(type))));
  });
});
