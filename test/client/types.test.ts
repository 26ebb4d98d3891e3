import { describe, expect, test } from "bun:test";
import {
  type ApiError,
  type ApiErrorCode,
  type Client,
  createClient,
  type Firing,
  type Job,
  type JobListQuery,
  type NewJob,
  type NewSchedule,
  RawJson,
  type Schedule,
  type SchedulePut,
  type ScheduleUpdate,
} from "../../shared/client/index.ts";

/**
 * The types must refuse some calls and allow others. The type check of the project runs these: an "expect-error"
 * without an error fails it.
 */

/** True if both types are identical; assignability alone would also accept other types. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;

const truths: true[] = [
  true satisfies Same<Job["status"], "queued" | "running" | "succeeded" | "failed" | "canceled">,
  true satisfies Same<Job["retry_policy"]["max_attempts"], number>,
  true satisfies Same<Job["payload"], Record<string, unknown>>,
  true satisfies Same<
    keyof NewJob,
    "target_url" | "payload" | "run_at" | "region" | "retry_policy" | "tags" | "flow"
  >,
  true satisfies Same<JobListQuery["region"], Job["region"] | undefined>,
  true satisfies Same<Schedule["next_run_at"], string | null>,
  true satisfies Same<Schedule["payload"], Record<string, unknown>>,
  true satisfies Same<
    keyof NewSchedule,
    | "name"
    | "cron"
    | "target_url"
    | "timezone"
    | "payload"
    | "retry_policy"
    | "overlap"
    | "spread_seconds"
    | "tags"
    | "flow"
  >,
  true satisfies Same<keyof ScheduleUpdate, keyof NewSchedule | "paused">,
  true satisfies Same<keyof SchedulePut, Exclude<keyof NewSchedule, "name"> | "paused">,
  true satisfies Same<NewSchedule["overlap"], "allow" | "skip" | "replace" | undefined>,
  true satisfies Same<
    Firing["status"],
    "fired" | "skipped_paused" | "skipped_quota" | "skipped_overlap" | "missed_outage" | "backfilled"
  >,
  true satisfies Same<Firing["due_at"], string | undefined>,
];

interface Order {
  id: string;
}
const order: Order = { id: "7" };
const target_url = "https://example.com/";

const allowed: NewJob[] = [
  { target_url },
  { target_url, payload: order, run_at: new Date() },
  { target_url, payload: new RawJson("{}"), region: "us-west", retry_policy: { cap_seconds: 5 } },
];

const refused: NewJob[] = [
  // @ts-expect-error a job needs a target
  {},
  // @ts-expect-error the field is run_at
  { target_url, runAt: "2030-01-01T00:00:00Z" },
  // @ts-expect-error no such region
  { target_url, region: "mars" },
  // @ts-expect-error a payload is an object
  { target_url, payload: "text" },
  // @ts-expect-error no such field of the policy
  { target_url, retry_policy: { maxAttempts: 1 } },
];

async function misuse(client: Client): Promise<void> {
  // @ts-expect-error no such status
  await client.jobs.list({ status: "done" });
  // @ts-expect-error jobs have no status timed_out
  await client.jobs.list({ status: "timed_out" });
  await client.runs.list({ status: "timed_out" });
  // @ts-expect-error a get is sent again without a key
  await client.jobs.get("job_1", { idempotencyKey: "a" });
  // @ts-expect-error list items have no payload
  for await (const job of client.jobs.list()) console.log(job.payload);
  await client.schedules.list({ paused: true });
  // @ts-expect-error it is paused or it is not
  await client.schedules.list({ paused: "yes" });
  // @ts-expect-error a new schedule is active
  await client.schedules.create({ name: "a", cron: "@daily", target_url, paused: true });
  // @ts-expect-error the name stands in the path
  await client.schedules.put("a", { name: "a", cron: "@daily", target_url });
  // @ts-expect-error nothing is made, so that no key is needed
  await client.schedules.preview({ cron: "@daily" }, { idempotencyKey: "a" });
  // @ts-expect-error the plan is the operator's to change
  await client.project.update({ plan: "scale" });
  // @ts-expect-error a client needs a key
  createClient({ baseUrl: "https://example.com" });
}

function explain(error: ApiError): string {
  const { code } = error;
  // @ts-expect-error an unknown code may come
  const known: "invalid_request" = code;
  const any: ApiErrorCode = "a code of next year";
  return `${code === "quota_exceeded" ? error.retryAfterSeconds?.toFixed() : known}${any}`;
}

describe("the types of the client", () => {
  test("are those of the contract", () => {
    expect(truths.every(Boolean)).toBe(true);
    expect([allowed.length, refused.length]).toEqual([3, 5]);
    expect([misuse, explain].map((use) => typeof use)).toEqual(["function", "function"]);
  });
});
