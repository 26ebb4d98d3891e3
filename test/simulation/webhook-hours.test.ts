import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHmac, randomBytes } from "node:crypto";
import {
  createIdSource,
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  idToUuid,
  REQUEST_PREFIX,
  uuidToId,
} from "../../shared/domain/ids.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import type { KeyCause } from "../../shared/store/resources/audit.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import {
  changeWebhook,
  rotateWebhookSecret,
  type WebhookRow,
} from "../../shared/store/resources/webhooks.ts";
import { signatureOf, until, untilEnded } from "../flow/support.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { type Arrival, startTarget, type Target } from "../support/target.ts";
import { type ManualClock, startManualClock } from "./manual-clock.ts";

setDefaultTimeout(900_000);

/** Plays 48 hours of retries to failing endpoints with the real worker, delivery node and database, on a clock that leaps. */

const SECOND_MS = 1_000;
const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
/** The documented waits, from the end of one attempt to the start of the next. */
const WAITS_MS = [5 * SECOND_MS, ...[5, 30, 120, 300, 600, 840].map((minutes) => minutes * MINUTE_MS)];
/** Somewhat more than the time between two sweeps: attempts that are due within it are known in advance. */
const BEFORE_MS = 1_500;
/**
 * The time that a busy machine may take from a claim to its request, which belongs to no attempt's duration. With it the first wait
 * of 5 s may seem to be 10 s and no more.
 */
const CLAIM_MS_MAX = 4_500;
/** How late a busy machine may begin an attempt. No attempt is ever early. */
const LATE_MS = 15_000;

interface Attempt {
  attempt: number;
  startedAt: number;
  endedAt: number;
}
interface Open {
  id: string;
  webhookId: string;
  eventId: string;
  attempt: number;
  dueAt: number;
}

let cell: Cell;
let clock: ManualClock;
let project: ProjectRow;
let jobs: Target;
/** An endpoint that fails, moves, and works again at the end, as the other one does. */
let dead: { target: Target; moved: Target; id: string; secret: string };
/** An endpoint that fails every event except one. */
let flaky: { target: Target; id: string; secret: string };
/** The due time of each attempt, by its endpoint, event and number. */
const plannedAt = new Map<string, number>();
let areMended = false;
let goodEventId = "";
const requestIds = createIdSource(randomBytes);

beforeAll(async () => {
  cell = await startCell({
    async startClock(url) {
      clock = await startManualClock(url);
      return clock;
    },
  });
  await cell.startWorker();
  await cell.startDelivery();
  project = await cell.addProject();
  jobs = startTarget();
  const answerDead = () => new Response("", { status: areMended ? 200 : 500 });
  const answerFlaky = ({ headers }: Arrival) =>
    new Response("", { status: areMended || headers["webhook-id"] === goodEventId ? 200 : 500 });
  const [target, moved, other] = [startTarget(answerDead), startTarget(answerDead), startTarget(answerFlaky)];
  dead = { target, moved, ...(await cell.addEndpoint(project, { url: target.url })) };
  flaky = { target: other, ...(await cell.addEndpoint(project, { url: other.url })) };
});
afterAll(async () => {
  await cell.stop();
  for (const target of [jobs, dead.target, dead.moved, flaky.target]) await target.stop();
});

const ask = async <Row>(name: string, text: string, values: unknown[]) =>
  cell.db.run<Row>(`test_${name}`, text, values);
const scope = () => ({ projectNo: project.no, environment: "production" as const });
const cause = (): KeyCause => ({ requestId: requestIds.next(REQUEST_PREFIX, clock.now()), keyNo: 0 });

async function change(id: string, decide: (webhook: WebhookRow) => WebhookRow): Promise<void> {
  await changeWebhook(cell.db, scope(), id, decide, cause(), 0);
}

async function isEnabled(id: string): Promise<boolean> {
  const [row] = await ask<{ enabled: boolean }>("enabled", "SELECT enabled FROM webhooks WHERE id = $1", [
    idToUuid(id),
  ]);
  return row?.enabled ?? false;
}

/** Ends a job. Answers its event once each enabled endpoint has had the first attempt. */
async function endJob(isGood = false): Promise<string> {
  const [jobId = ""] = await cell.addJobs(project, [{ targetUrl: jobs.url }]);
  await untilEnded(cell, project, jobId);
  const [event] = await ask<{ id: string }>("event", "SELECT id FROM events WHERE job_id = $1", [
    idToUuid(jobId),
  ]);
  const eventId = uuidToId(EVENT_PREFIX, event?.id ?? "");
  if (isGood) goodEventId = eventId;
  await until(async () =>
    (await open()).every((delivery) => delivery.eventId !== eventId || delivery.attempt > 1),
  );
  return eventId;
}

/** The owed deliveries, the next one first. An attempt on the wire has no instant (NaN). */
async function open(): Promise<Open[]> {
  const rows = await ask<
    Record<"id" | "webhook_id" | "event_id", string> & { attempt: number; due_at: number | null }
  >(
    "open",
    `SELECT id, webhook_id, event_id, attempt, (extract(epoch FROM due_at) * 1000)::float8 AS due_at
       FROM open_deliveries WHERE project_no = $1 ORDER BY due_at`,
    [project.no],
  );
  const owed = rows.map((row) => ({
    id: uuidToId(DELIVERY_PREFIX, row.id),
    webhookId: row.webhook_id,
    eventId: uuidToId(EVENT_PREFIX, row.event_id),
    attempt: row.attempt,
    dueAt: row.due_at ?? Number.NaN,
  }));
  for (const { webhookId, eventId, attempt, dueAt } of owed)
    if (!Number.isNaN(dueAt)) plannedAt.set(`${webhookId} ${eventId} ${attempt}`, dueAt);
  return owed;
}

async function attemptsOf(webhookId: string, eventId: string): Promise<Attempt[]> {
  const rows = await ask<{ attempt: number; at: number; duration_ms: number }>(
    "attempts",
    `SELECT a.attempt, (extract(epoch FROM a.started_at) * 1000)::float8 AS at, a.duration_ms
       FROM delivery_attempts a
       JOIN (SELECT id, event_id, webhook_id FROM open_deliveries UNION ALL
             SELECT id, event_id, webhook_id FROM ended_deliveries) d ON d.id = a.delivery_id
      WHERE d.webhook_id = $1 AND d.event_id = $2 ORDER BY a.attempt`,
    [idToUuid(webhookId), idToUuid(eventId)],
  );
  return rows.map((row) => ({ attempt: row.attempt, startedAt: row.at, endedAt: row.at + row.duration_ms }));
}

async function endOf(
  webhookId: string,
  eventId: string,
): Promise<{ status: number; attempts: number } | null> {
  const [row] = await ask<{ status: number; attempts: number }>(
    "ended",
    "SELECT status, attempts FROM ended_deliveries WHERE webhook_id = $1 AND event_id = $2",
    [idToUuid(webhookId), idToUuid(eventId)],
  );
  return row ?? null;
}
const [FAILED, DROPPED] = [1, 2];

/**
 * Plays every attempt that is due before an instant, at its time; `each` runs after every one of them. The clock
 * leaps only while nothing is on the wire, since a leap would pass an attempt's deadline.
 */
async function liveUntil(at: number, each: () => Promise<void> = async () => {}): Promise<void> {
  for (;;) {
    const isQuiet = (owed: Open[]) => owed.every(({ dueAt }) => !Number.isNaN(dueAt));
    const [next] = await until(async () => {
      const owed = await open();
      return isQuiet(owed) && owed;
    });
    if (next === undefined || next.dueAt >= at - BEFORE_MS) break;
    await clock.leapTo(next.dueAt - BEFORE_MS);
    await until(async () => {
      const same = (await open()).find(({ id }) => id === next.id);
      return same === undefined || (same.attempt > next.attempt && !Number.isNaN(same.dueAt));
    });
    await each();
  }
  await clock.leapTo(at);
}

const arrivalsOf = (eventId: string, ...targets: Target[]) =>
  targets.flatMap((target) => target.arrivals.filter(({ headers }) => headers["webhook-id"] === eventId));
const v1Of = (secret: string, { headers, body }: Arrival) =>
  `v1,${createHmac("sha256", Buffer.from(secret.slice("whsec_".length), "base64"))
    .update(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`)
    .digest("base64")}`;

describe("48 hours of retries", () => {
  let first = "";
  let second = "";
  let third = "";
  let firstStartedAt = 0;
  let rotatedAt = 0;
  const newSecret = makeSecret(randomBytes);

  test("come at the documented instants, to the present URL with the present secret, and leave the endpoint enabled", async () => {
    first = await endJob();
    firstStartedAt = (await attemptsOf(dead.id, first))[0]?.startedAt ?? 0;
    const hour = (hours: number) => firstStartedAt + hours * HOUR_MS;
    const expectEnabled = async () =>
      expect([await isEnabled(dead.id), await isEnabled(flaky.id)]).toEqual([true, true]);

    await liveUntil(firstStartedAt + MINUTE_MS, expectEnabled);
    await change(dead.id, (webhook) => ({ ...webhook, url: dead.moved.url }));
    await liveUntil(hour(4), expectEnabled);
    rotatedAt = clock.now();
    await rotateWebhookSecret(cell.db, scope(), dead.id, cell.seal.seal(newSecret), cause(), null);
    await liveUntil(hour(20), expectEnabled);
    second = await endJob(true);
    // The job, its event and the event's retry after 5 s have to come before the end, also on a busy machine.
    await liveUntil(hour(48) - MINUTE_MS, expectEnabled);
    third = await endJob();
    await expectEnabled();
    // Everything sent to the dead endpoint in 47 h 59 min has failed, this attempt included; that is too short to
    // disable it.
    await liveUntil(hour(48) - BEFORE_MS, expectEnabled);
    for (const endpoint of [dead, flaky]) {
      const attempts = await attemptsOf(endpoint.id, first);
      expect(attempts.filter(({ startedAt }) => startedAt < hour(48) - BEFORE_MS)).toHaveLength(8);
    }
    expect((await attemptsOf(dead.id, third)).length).toBeGreaterThanOrEqual(2);
  });

  test("end with a last attempt exactly 48 h after the first, which disables the endpoint", async () => {
    const lastAt = firstStartedAt + 48 * HOUR_MS;
    await liveUntil(lastAt + 2 * MINUTE_MS);
    expect(await endOf(dead.id, first)).toEqual({ status: FAILED, attempts: 9 });
    expect(await endOf(flaky.id, first)).toEqual({ status: FAILED, attempts: 9 });
    expect(await isEnabled(dead.id)).toBe(false);
    // The flaky endpoint accepted one event in these hours.
    expect(await isEnabled(flaky.id)).toBe(true);
    for (const endpoint of [dead, flaky]) {
      const attempts = await attemptsOf(endpoint.id, first);
      const planOf = (attempt: number) => plannedAt.get(`${idToUuid(endpoint.id)} ${first} ${attempt}`) ?? 0;
      for (const [index, waitMs] of WAITS_MS.entries()) {
        const attempt = index + 2;
        const wait = planOf(attempt) - (attempts[index]?.endedAt ?? 0);
        const isDocumented = wait >= 0.9 * waitMs - 1 && wait <= 1.1 * waitMs + CLAIM_MS_MAX;
        expect({ attempt, wait, isDocumented }).toMatchObject({ isDocumented: true });
      }
      const windowEndsAt = (attempts[0]?.startedAt ?? 0) + 48 * HOUR_MS;
      expect(Math.abs(planOf(9) - windowEndsAt)).toBeLessThanOrEqual(1);
      for (const { attempt, startedAt } of attempts.slice(1)) {
        expect(startedAt).toBeGreaterThanOrEqual(planOf(attempt));
        expect(startedAt).toBeLessThan(planOf(attempt) + LATE_MS);
      }
    }
  });

  test("carry the same bytes under the same id, with both signatures during the 24 h of a rotation", async () => {
    const arrivals = arrivalsOf(first, dead.target, dead.moved);
    expect(arrivalsOf(first, dead.target)).toHaveLength(2);
    expect(arrivals).toHaveLength(9);
    const attempts = await attemptsOf(dead.id, first);
    const all = [...arrivals, ...arrivalsOf(first, flaky.target)];
    expect(new Set(all.map(({ body }) => body)).size).toBe(1);
    expect(JSON.parse(all[0]?.body ?? "").id).toBe(first);
    const kinds = arrivals.map((arrival, index) => {
      const startedAt = attempts[index]?.startedAt ?? 0;
      expect(Math.abs(Number(arrival.headers["webhook-timestamp"]) * 1_000 - startedAt)).toBeLessThan(
        LATE_MS,
      );
      const signatures = arrival.headers["webhook-signature"] ?? "";
      const present = startedAt < rotatedAt ? dead.secret : newSecret;
      expect(arrival.headers["service-signature"]).toBe(signatureOf(present, arrival.body));
      const isBoth = startedAt >= rotatedAt && startedAt < rotatedAt + 24 * HOUR_MS;
      const expected = isBoth ? [newSecret, dead.secret] : [present];
      expect(signatures).toBe(expected.map((secret) => v1Of(secret, arrival)).join(" "));
      return isBoth ? "both" : present === newSecret ? "new" : "old";
    });
    // At 0, 5 s, 5 min, 35 min, 2.6 h, then 7.6 h and 17.6 h, then 31.6 h and 48 h.
    expect(kinds).toEqual(["old", "old", "old", "old", "old", "both", "both", "new", "new"]);
  });

  test("are over for a disabled endpoint: nothing more is kept for it, and nothing dropped is sent again", async () => {
    const sentBefore = dead.moved.arrivals.length;
    const fourth = await endJob();
    expect(arrivalsOf(fourth, flaky.target).length).toBeGreaterThanOrEqual(1);
    const owed = await ask<{ count: number }>(
      "owed",
      "SELECT count(*)::int AS count FROM open_deliveries WHERE webhook_id = $1 AND event_id = $2",
      [idToUuid(dead.id), idToUuid(fourth)],
    );
    expect(owed).toEqual([{ count: 0 }]);
    areMended = true;
    await change(dead.id, (webhook) => ({ ...webhook, status: "enabled" }));
    const fifth = await endJob();
    await until(() => arrivalsOf(fifth, dead.moved).length === 1);
    // The clock passes every instant at which a dropped delivery would have been due: each one is looked at and
    // removed.
    await liveUntil(firstStartedAt + 70 * HOUR_MS);
    const left = await open();
    expect(left.filter(({ webhookId }) => webhookId === idToUuid(dead.id))).toEqual([]);
    expect([await endOf(dead.id, second), await endOf(dead.id, third)]).toMatchObject([
      { status: DROPPED },
      { status: DROPPED },
    ]);
    expect(dead.moved.arrivals.slice(sentBefore).map(({ headers }) => headers["webhook-id"])).toEqual([
      fifth,
    ]);
    expect(await isEnabled(dead.id)).toBe(true);
  });
});
