import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { findDatabaseUrl } from "../../services/admin/cell.ts";
import { type Client, createClient, type Schedule } from "../../shared/client/index.ts";
import type { Happened } from "../../shared/contract/test-clock.ts";
import { nextInstant, readTimetable } from "../../shared/domain/schedule.ts";
import { CHECKOUT, type ServiceProcess, startService } from "../support/service-process.ts";
import { type Arrival, startTarget, type Target } from "../support/target.ts";
import { STANDALONE, standaloneSettings } from "../support/terminal.ts";
import { until } from "./support.ts";

setDefaultTimeout(300_000);

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
/** The delay is so long that a walk which did not wait for the answer would pass the attempt's time-out. */
const SLOW_MS = 300;
/** The difference that receivers allow between a signature's time and their own. */
const TOLERANCE_MS = 300_000;

const dataDir = mkdtempSync(join(tmpdir(), "test-clock-"));
let service: ServiceProcess;
let target: Target;
let jobwheel: Client;
let apiKey = "";
const at = (path: string) => arrivalsAt(target.arrivals, path);
const arrivalsAt = (arrivals: readonly Arrival[], path: string) =>
  arrivals.filter((arrival) => arrival.path === path);
/** Keeps the requests to "/held" open. */
const held = Promise.withResolvers<void>();
const ops = (path: string) => `http://127.0.0.1:${service.opsPort}${path}`;

beforeAll(async () => {
  target = startTarget(async ({ path }) => {
    if (path === "/slow") await Bun.sleep(SLOW_MS);
    if (path === "/held") await held.promise;
    const headers = { "retry-after": new Date(Date.now() + HOUR_MS).toUTCString() };
    if (path === "/later") return new Response("", { status: 503, headers });
    return new Response("", { status: path === "/fails" ? 500 : 200 });
  });
  const settings = { DATA_DIR: dataDir, LOG_LEVEL: "warn" };
  service = await startService("standalone", settings, { words: ["--test-clock"] });
  apiKey = await until(() => /svc_dev_\w+/.exec(service.output)?.[0]);
  const baseUrl = `http://127.0.0.1:${service.port}`;
  jobwheel = createClient({ baseUrl, apiKey, opsUrl: ops("") });
});
afterAll(async () => {
  await service.end("SIGTERM");
  await target.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

const newJob = (path = "/job", options: object = {}) => ({
  target_url: new URL(path, target.url).href,
  ...options,
});
const inMs = async (ms: number) => new Date(Date.parse((await jobwheel.testClock.get()).now) + ms);

const databaseUrl = () =>
  findDatabaseUrl({ databaseUrl: null, dataDir } as Parameters<typeof findDatabaseUrl>[0]);

async function sql<Row extends pg.QueryResultRow>(text: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: databaseUrl() });
  await client.connect();
  try {
    return (await client.query<Row>(text)).rows;
  } finally {
    await client.end();
  }
}

test("the clock runs with real time until it is put ahead, and every start says what it is", async () => {
  expect(service.output).toContain("TEST CLOCK");
  const { now, ...rest } = await jobwheel.testClock.get();
  expect(rest).toEqual({ offset_ms: 0, advancing: false });
  expect(Math.abs(Date.parse(now) - Date.now())).toBeLessThan(60_000);
});

describe("what cannot be advanced is refused in the usual envelope", () => {
  test.each([
    [{}, "by"],
    [{ by: "48" }, "by"],
    [{ by: "-1h" }, "by"],
    [{ by: "1h30m" }, "by"],
    [{ by: "367d" }, "by"],
    [{ by: 48 }, "by"],
    [{ to: "2020-01-01T00:00:00Z" }, "to"],
    [{ to: "tomorrow" }, "to"],
    [{ to: new Date(Date.now() + 367 * DAY_MS) }, "to"],
    [{ by: "1h", to: new Date(Date.now() + HOUR_MS) }, "to"],
    [{ By: "1h" }, "By"],
  ])("%j", async (body, param) => {
    const response = await fetch(ops("/clock/advance"), { method: "POST", body: JSON.stringify(body) });
    const { error } = (await response.json()) as { error: Record<string, string> };
    expect([response.status, error.code, error.param]).toEqual([400, "invalid_request", param]);
    expect(error.request_id).toBe(response.headers.get("request-id") ?? "");
  });

  test("what is no JSON, what a browser's page sends, and what is no object", async () => {
    const statuses = [];
    const origin = { origin: "https://example.com" };
    for (const init of [{ body: "{by}" }, { body: '{"by":"1h"}', headers: origin }, { body: "[]" }])
      statuses.push((await fetch(ops("/clock/advance"), { method: "POST", ...init })).status);
    expect(statuses).toEqual([400, 400, 400]);
    expect((await jobwheel.testClock.get()).offset_ms).toBe(0);
  });
});

test("an endpoint that fails for 48 hours is seen disabled, and an Idempotency-Key expires", async () => {
  const fails = await jobwheel.webhooks.create({
    url: newJob("/fails").target_url,
    events: ["job.succeeded"],
  });
  const hears = newJob("/hears").target_url;
  await jobwheel.webhooks.create({ url: hears, events: ["webhook.disabled", "job.succeeded"] });
  const key = { idempotencyKey: "once" };
  const [job, again] = [await jobwheel.jobs.create(newJob(), key), await jobwheel.jobs.create(newJob(), key)];
  expect(again.id).toBe(job.id);

  const early = await jobwheel.testClock.advance("47h");
  expect((await jobwheel.webhooks.get(fails.id)).status).toBe("enabled");
  const late = await jobwheel.testClock.advance({ by: "2h" });
  expect((await jobwheel.webhooks.get(fails.id)).status).toBe("disabled");
  expect([early.advanced_ms, late.advanced_ms]).toEqual([47 * HOUR_MS, 2 * HOUR_MS]);
  expect(Date.parse(late.now) - Date.parse(early.from)).toBeGreaterThanOrEqual(49 * HOUR_MS);

  // The rules retry after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, and for the last time 48 h after the first attempt.
  const { data } = await jobwheel.webhooks.deliveries(fails.id);
  expect(data.map(({ status, attempts }) => [status, attempts.length])).toEqual([["failed", 9]]);
  const sent = at("/fails");
  expect(sent).toHaveLength(9);
  for (const arrival of sent) {
    const signedAt = Number(arrival.headers["webhook-timestamp"]) * 1_000;
    expect(Math.abs(signedAt - arrival.at)).toBeLessThan(TOLERANCE_MS);
  }
  const told = at("/hears").map(({ body }) => JSON.parse(body));
  expect(told.map(({ type }) => type)).toEqual(["job.succeeded", "webhook.disabled"]);
  const disabledAfterMs = Date.parse(told[1].created_at) - Date.parse(told[0].created_at);
  expect(disabledAfterMs).toBeGreaterThanOrEqual(48 * HOUR_MS);
  expect(disabledAfterMs).toBeLessThan(48 * HOUR_MS + TOLERANCE_MS);

  expect((await jobwheel.jobs.create(newJob(), key)).id).not.toBe(job.id);
  const zero: Happened = { attempts: 0, firings: 0, deliveries: 0, expired_keys: 0, purged_runs: 0 };
  // The first attempts may have been sent before the walk began.
  expect(early.happened.expired_keys).toBe(3);
  expect(early.happened.deliveries).toBeWithin(6, 10);
  expect(late.happened).toEqual({ ...zero, deliveries: 2 });
});

const sum = (counts: number[]) => counts.reduce((all, count) => all + count, 0);

/** The instants of a schedule's timetable since its creation. */
function instantsOf({ cron, timezone, created_at }: Schedule, untilAt: number): string[] {
  const timetable = readTimetable(cron, timezone);
  const instants: string[] = [];
  for (let after = Date.parse(created_at); ; ) {
    const next = nextInstant(timetable, after);
    if (next === null || next > untilAt) return instants;
    instants.push(new Date(next).toISOString());
    after = next;
  }
}

async function ledgerOf(schedule: Schedule) {
  const rows: { at: string; status: string }[] = [];
  for await (const { at, status } of jobwheel.schedules.firings(schedule.id, { limit: 100 }))
    rows.unshift({ at, status });
  return rows;
}

test("schedules cross both clock changes of a year in two zones, at the instants of their timetables and in their order; runs expire", async () => {
  const [first] = (await jobwheel.runs.list()).data;
  // After this walk no earlier work is left to be done, and insights show none of it.
  await jobwheel.testClock.advance("31d");
  const given = [
    { name: "Berlin", cron: "30 2 25-31 3,10 *", timezone: "Europe/Berlin" },
    { name: "New York, spring", cron: "30 2 8-14 3 *", timezone: "America/New_York" },
    { name: "New York, autumn", cron: "30 1 1-7 11 *", timezone: "America/New_York" },
  ];
  const schedules: Schedule[] = [];
  for (const timetable of given)
    schedules.push(await jobwheel.schedules.create({ ...newJob("/fired"), ...timetable }));
  const yearLater = await inMs(366 * DAY_MS);
  const expected = schedules.map((schedule) => instantsOf(schedule, yearLater.getTime()));
  const all = expected.flat().sort();
  expect(all.length).toBeGreaterThanOrEqual(28);
  const [firings, purged] = [[0], [0]];
  // The test reads the ledger and the runs soon after the instants of each month, while the API shows them.
  for (const instants of Object.values(Object.groupBy(all, (at) => at.slice(0, 7))) as string[][]) {
    const last = Date.parse(instants.at(-1) ?? "");
    const walked = await jobwheel.testClock.advance({ to: new Date(last + HOUR_MS) });
    firings.push(walked.happened.firings);
    purged.push(walked.happened.purged_runs);
    expect(walked.happened).toMatchObject({
      attempts: walked.happened.firings,
      deliveries: walked.happened.firings,
    });
    const ledgers = (await Promise.all(schedules.map(ledgerOf))).flat();
    for (const at of instants) expect(ledgers).toContainEqual({ at, status: "fired" });
    const { data: runs } = await jobwheel.runs.list({ limit: instants.length });
    for (const [index, { started_at }] of runs.reverse().entries()) {
      const lateMs = Date.parse(started_at) - Date.parse(instants[index] ?? "");
      expect(lateMs).toBeGreaterThanOrEqual(0);
      expect(lateMs).toBeLessThan(HOUR_MS);
    }
    const { from, totals } = await jobwheel.project.insights({ period: "30d" });
    const count = all.filter((at) => at >= from && Date.parse(at) <= last).length;
    expect(totals).toMatchObject({ created: count, succeeded: count });
  }
  const { happened } = await jobwheel.testClock.advance({ to: yearLater });
  expect(sum(firings)).toBe(all.length);
  expect(at("/fired").map(({ headers }) => headers["service-scheduled-at"])).toEqual(all);
  expect(
    arrivalsAt(target.arrivals, "/hears").filter(({ body }) => body.includes("job.succeeded")),
  ).toHaveLength(all.length + 2);
  expect(sum(purged) + happened.purged_runs).toBeGreaterThanOrEqual(1);
  await expect(jobwheel.runs.get(first?.id ?? "")).rejects.toMatchObject({ code: "resource_not_found" });
  for (const { id } of schedules) await jobwheel.schedules.delete(id);
});

test("a month's quota rolls over, and what has waited for it starts in the month's first instant", async () => {
  const now = await inMs(0);
  const inMonth = (month: number, day: number) =>
    new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + month, day));
  await jobwheel.testClock.advance({ to: inMonth(1, 10) });
  await sql("UPDATE flows SET month = date_trunc('month', now())::date, month_runs = 0, month_runs_max = 1");
  const [one, other] = [
    await jobwheel.jobs.create(newJob("/job", { run_at: (await inMs(HOUR_MS)).toISOString() })),
    await jobwheel.jobs.create(newJob("/job", { run_at: (await inMs(2 * HOUR_MS)).toISOString() })),
  ];
  await jobwheel.testClock.advance("3h");
  expect((await jobwheel.jobs.get(one.id)).status).toBe("succeeded");
  expect((await jobwheel.jobs.explain(other.id)).waiting).toMatchObject({ for: "quota" });
  await jobwheel.testClock.advance({ to: inMonth(2, 1) });
  expect((await jobwheel.jobs.get(other.id)).status).toBe("succeeded");
  const [run] = (await jobwheel.runs.list({ job_id: other.id })).data;
  const lateMs = Date.parse(run?.started_at ?? "") - inMonth(2, 1).getTime();
  expect(lateMs).toBeGreaterThanOrEqual(0);
  expect(lateMs).toBeLessThan(HOUR_MS);
  await sql("UPDATE flows SET month_runs_max = NULL");
});

test("what is on the wire is waited for in real time, and a Retry-After is by the target's clock", async () => {
  const retry_policy = { max_attempts: 3, base_seconds: 1, cap_seconds: 7_200 };
  const [slow, later] = [
    await jobwheel.jobs.create(newJob("/slow")),
    await jobwheel.jobs.create(newJob("/later", { retry_policy })),
  ];
  await jobwheel.testClock.advance("40m");
  const [run] = (await jobwheel.runs.list({ job_id: slow.id })).data;
  expect(run?.status).toBe("succeeded");
  expect(run?.duration_ms).toBeWithin(SLOW_MS - 50, 20 * 60_000);
  expect((await jobwheel.jobs.get(later.id)).attempts).toBe(1);
  await jobwheel.testClock.advance("40m");
  expect((await jobwheel.jobs.get(later.id)).attempts).toBe(2);
  await jobwheel.jobs.cancel(later.id);
});

test("a bulk operation walks at its pace in moved time", async () => {
  const jobs = Array.from({ length: 6 }, () => newJob("/job", { run_at: "2100-01-01T00:00:00Z" }));
  const runAt = (await inMs(300 * DAY_MS)).toISOString();
  for (const job of jobs) await jobwheel.jobs.create({ ...job, run_at: runAt });
  const before = Date.parse((await jobwheel.testClock.get()).now);
  const bulk = await jobwheel.bulk.create({ action: "cancel", filter: { all: true }, per_second: 1 });
  await jobwheel.testClock.advance("1h");
  const { status, done, ended_at } = await jobwheel.bulk.get(bulk.id);
  expect({ status, done }).toEqual({ status: "done", done: 6 });
  expect(Date.parse(ended_at ?? "") - before).toBeGreaterThanOrEqual(5_000);
});

test("two advances at once go one after the other", async () => {
  const before = await jobwheel.testClock.get();
  // A walk waits for what is on the wire, so it lasts until it was seen.
  await jobwheel.jobs.create(newJob("/held"));
  await target.until(() => at("/held").length === 1);
  const walks = await Promise.all([
    jobwheel.testClock.advance("1h"),
    jobwheel.testClock.advance("2h"),
    until(async () => (await jobwheel.testClock.get()).advancing).finally(held.resolve),
  ]);
  const [one, other] = walks;
  expect(one.now <= other.from || other.now <= one.from).toBe(true);
  const after = await jobwheel.testClock.get();
  expect(after).toMatchObject({ offset_ms: before.offset_ms + 3 * HOUR_MS, advancing: false });
});

test("the command line shows the clock and puts it ahead", async () => {
  const env = { ...process.env, JOBWHEEL_KEY: apiKey, JOBWHEEL_OPS_URL: ops("") };
  const say = (...words: string[]) => {
    const { stdout } = Bun.spawnSync([process.execPath, "services/cli/main.ts", ...words, "--json"], {
      cwd: CHECKOUT,
      env,
    });
    return JSON.parse(stdout.toString());
  };
  const { offset_ms } = say("clock");
  expect(say("clock", "advance", "1.5h")).toMatchObject({ advanced_ms: 1.5 * HOUR_MS });
  expect(say("clock").offset_ms).toBe(offset_ms + 1.5 * HOUR_MS);
  const to = (await inMs(HOUR_MS)).toISOString();
  expect(say("clock", "advance", to).now >= to).toBe(true);
});

test("killed in the middle of an advance it goes on at the clock's stand, and nothing is lost", async () => {
  const timetable = { name: "each minute", cron: "* * * * *" };
  const schedule = await jobwheel.schedules.create({ ...newJob("/minute"), ...timetable });
  const walked = (count: number) =>
    target.until((arrivals) => arrivalsAt(arrivals, "/minute").length >= count, 120_000);
  // A client that goes away ends the walk where the clock stands.
  const going = new AbortController();
  const given = jobwheel.testClock.advance("2d", { signal: going.signal }).catch((error: unknown) => error);
  await walked(3);
  going.abort();
  expect(await given).toBeInstanceOf(Error);
  await until(async () => !(await jobwheel.testClock.get()).advancing);
  expect(at("/minute").length).toBeLessThan(24 * 60);

  const broken = jobwheel.testClock.advance("2d").catch((error: unknown) => error);
  await walked(at("/minute").length + 10);
  const stood = await jobwheel.testClock.get();
  expect(stood.advancing).toBe(true);
  const slow = await jobwheel.jobs.create(newJob("/slow"));
  await target.until((arrivals) => arrivals.some(({ jobId }) => jobId === slow.id));
  await service.end("SIGKILL");
  expect(await broken).toBeInstanceOf(Error);

  const refused = Bun.spawnSync([...STANDALONE], { env: await standaloneSettings({ DATA_DIR: dataDir }) });
  expect([refused.exitCode, refused.stdout.toString(), refused.stderr.toString()]).toEqual([
    1,
    "",
    `The data folder ${dataDir} belongs to a test clock, and its rows may lie in the future: start it with npm start -- --test-clock, or set DATA_DIR to another folder.\n`,
  ]);
  await service.startAgain();
  const goesOn = await jobwheel.testClock.get();
  expect(goesOn.offset_ms).toBeGreaterThanOrEqual(stood.offset_ms);
  const to = new Date(Date.parse(goesOn.now) + 70 * 60_000);
  const { now } = await jobwheel.testClock.advance({ to });
  await jobwheel.schedules.pause(schedule.id);
  const instants = instantsOf(schedule, Date.parse(now));
  expect((await ledgerOf(schedule)).slice(0, instants.length)).toEqual(
    instants.map((at) => ({ at, status: "fired" })),
  );
  const arrived = new Set(at("/minute").map(({ jobId }) => jobId));
  for await (const { job_id } of jobwheel.schedules.firings(schedule.id, { limit: 100 }))
    expect(arrived).toContain(job_id ?? "");
  // The attempt on the wire is lost, which takes no moved time, and the job is sent again.
  const runs = (await jobwheel.runs.list({ job_id: slow.id })).data.reverse();
  expect(runs.map(({ status }) => status)).toEqual(["failed", "succeeded"]);
  expect(runs[0]?.duration_ms).toBeLessThan(20 * 60_000);
});

test("it is alone: not with DATABASE_URL, not with NATS_URL, and no other process over its Postgres", async () => {
  const env = {
    ...(await standaloneSettings({})),
    DATABASE_URL: databaseUrl(),
    NATS_URL: "nats://127.0.0.1:1",
    SECRETS_KEY: "0".repeat(64),
  };
  const worker = Bun.spawnSync([process.execPath, "services/worker/main.ts"], { cwd: CHECKOUT, env });
  expect([worker.exitCode, worker.stderr.toString()]).toEqual([
    1,
    "DATABASE_URL names the database of a test clock, which only `npm start -- --test-clock` may use.\n",
  ]);
  for (const [name, value] of [
    ["DATABASE_URL", "postgres://127.0.0.1:1/x"],
    ["NATS_URL", "nats://127.0.0.1:1"],
  ] as const) {
    const env = await standaloneSettings({ DATA_DIR: join(dataDir, "none"), [name]: value });
    const { exitCode, stderr } = Bun.spawnSync([...STANDALONE, "--test-clock"], { env });
    expect([exitCode, stderr.toString()]).toEqual([
      1,
      `--test-clock runs one process over a Postgres of its own, and ${name} is set: unset it.\n`,
    ]);
  }
});
