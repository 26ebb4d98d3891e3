import { describe, expect, test } from "bun:test";
import { EVENT_TYPES, type EventType, JOB_END_TYPES } from "../domain/webhook.ts";
import { Event } from "./event.ts";
import { type RecordedSample, sampleFacts, sampleRun } from "./event-sample.ts";
import { eventText } from "./event-text.ts";
import { validatorOf } from "./validator.ts";

const ID_BODY = "01m7ybr3vq81qbcnqxb2xa9jzd";
const validate = validatorOf(Event);

function recordedOf(type: EventType): RecordedSample {
  const occurredAt = Date.UTC(2026, 10, 21, 6, 12, 25, 618);
  const run = sampleRun(type);
  return {
    id: `evt_${ID_BODY}`,
    type,
    occurredAt,
    apiVersion: "2026-11-01",
    projectId: `prj_${ID_BODY}`,
    environment: "development",
    region: "us-east",
    run: run && { ...run, startedAt: occurredAt - 120 },
  };
}

describe("a sample", () => {
  test.each([...EVENT_TYPES])("of %s is an event like any other, from its own row alone", (type) => {
    const event = validate(JSON.parse(eventText(sampleFacts(recordedOf(type)))));
    expect(event).toMatchObject({ id: `evt_${ID_BODY}`, type, environment: "development" });
    const isOfProject = type === "quota.reached" || type === "host.down" || type === "host.up";
    if (!isOfProject) expect(JSON.stringify(event.data)).toContain(ID_BODY);
    expect(eventText(sampleFacts(recordedOf(type)))).toBe(eventText(sampleFacts(recordedOf(type))));
  });

  test.each([...JOB_END_TYPES])("of %s shows a job that has ended like that, and its run", (type) => {
    const event = validate(JSON.parse(eventText(sampleFacts(recordedOf(type)))));
    if (event.type !== "job.succeeded" && event.type !== "job.failed") return expect.unreachable();
    const { job, run } = event.data;
    expect([job.id, run.id, run.job_id]).toEqual([`job_${ID_BODY}`, `run_${ID_BODY}`, `job_${ID_BODY}`]);
    expect(job.status as string).toBe(run.status);
    expect(`job.${job.status}`).toBe(type);
    expect(job.attempts).toBe(run.attempt);
    expect((run.error === null) === (type === "job.succeeded")).toBe(true);
  });

  test("of a canceled job shows one that was never sent", () => {
    const event = validate(JSON.parse(eventText(sampleFacts(recordedOf("job.canceled")))));
    expect(event.data).toMatchObject({ job: { status: "canceled", attempts: 0 }, run: null });
  });
});
