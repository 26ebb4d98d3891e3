import { randomBytes } from "node:crypto";
import { createIdSource, JOB_PREFIX, REQUEST_PREFIX, SCHEDULE_PREFIX } from "../domain/ids.ts";
import type { Scope } from "../domain/scope.ts";
import type { Firing } from "./queue/firings.ts";
import { acquireShards, type HeldShard } from "./queue/shards.ts";
import type { ScheduleToCreate } from "./resources/schedules.ts";
import type { TestStore } from "./test-support.ts";

/** Schedules and their firings as tests of the store make them: every minute, and due since the last one. */

export const MINUTE_MS = 60_000;
export const ids = createIdSource(randomBytes);
export const keyCause = () => ({ requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 1 });

/** The start of the present minute, on a whole second as all firings are. */
export const lastMinute = () => Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS;

export function scheduleOf(
  scope: Scope,
  shard: number,
  wish: Partial<ScheduleToCreate> = {},
): ScheduleToCreate {
  const id = ids.next(SCHEDULE_PREFIX, Date.now());
  return {
    id,
    ...scope,
    name: id,
    cron: "* * * * *",
    timezone: "UTC",
    targetUrl: "https://target.example/hook",
    payload: `{"n":1.0}`,
    retryPolicy: { maxAttempts: 2, baseSeconds: 3, capSeconds: 4 },
    overlap: null,
    spreadSeconds: null,
    paused: false,
    nextRunAt: lastMinute(),
    shard,
    activeMax: 100,
    tags: null,
    flow: null,
    ...wish,
  };
}

/** The turn of a schedule at the instant that it was created with. */
export const firingOf = (
  schedule: ScheduleToCreate,
  held: HeldShard,
  wish: Partial<Firing> = {},
): Firing => ({
  projectNo: schedule.projectNo,
  environment: schedule.environment,
  scheduleId: schedule.id,
  held,
  cron: schedule.cron,
  timezone: schedule.timezone,
  nextRunAt: schedule.nextRunAt ?? 0,
  firedFor: schedule.nextRunAt,
  thenAt: (schedule.nextRunAt ?? 0) + MINUTE_MS,
  missed: null,
  jobId: ids.next(JOB_PREFIX, Date.now()),
  trace: null,
  ...wish,
});

/** Takes the shard for a new owner, even if another owner has it. */
export async function takeShard(store: TestStore, shard: number): Promise<HeldShard> {
  await store.query("UPDATE shards SET lease_until = '-infinity' WHERE shard = $1", [shard]);
  const wanted = [{ region: "us-east", shard }] as const;
  const [acquired] = await acquireShards(store.db, await store.addNode(), wanted, MINUTE_MS);
  if (acquired === undefined) throw new Error("the shard was not to be had");
  return acquired;
}
