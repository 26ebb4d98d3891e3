import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { createLog } from "../../../shared/platform/log.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import { declareNodeDead } from "../../../shared/store/cell/nodes.ts";
import type { PooledDatabase } from "../../../shared/store/database/database.ts";
import { startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { type ManualClock, startManualClock } from "../../../test/simulation/manual-clock.ts";
import { openTestDatabase } from "../../../test/support/database.ts";
import { ClockWatch } from "./clock-watch.ts";
import { listDuties } from "./duties.ts";
import { createInsights } from "./insights.ts";

const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;
const RESCUE_OPTIONS = {
  attemptTimeoutMs: MINUTE_MS,
  webhookTimeoutMs: MINUTE_MS,
  webhookRetryScale: 1,
  isProvedDead: () => false,
};
const log = createLog({ name: "test", level: "silent" });

/** Postgres' real time stands still at `fixed.time` in all sessions that begin later. */
const FIX_TIME = `
CREATE SCHEMA fixed;
CREATE TABLE fixed.time (at timestamptz NOT NULL);
INSERT INTO fixed.time VALUES (now());
CREATE FUNCTION fixed.transaction_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS $$ SELECT at FROM fixed.time $$;
DO $$ BEGIN
  EXECUTE format('ALTER DATABASE %I SET search_path = fixed, pg_catalog, public', current_database());
END $$`;

describe("what deletes by time", () => {
  let store: TestStore;
  let db: PooledDatabase;
  beforeAll(async () => {
    store = await startStore();
    await store.query(FIX_TIME);
    db = openTestDatabase(store.url, 1, "silent");
  });
  beforeEach(() => store.query("DELETE FROM clock_watch"));
  afterAll(async () => {
    await db.close();
    await store.stop();
  });

  const setTime = (at: number) => store.query("UPDATE fixed.time SET at = to_timestamp($1)", [at / 1_000]);

  /** A worker's two clocks, which both run, and Postgres' with them; `leap` sets the database's alone. */
  function startWatch({ at = Date.now() } = {}) {
    const clocks = { database: at, own: Math.random() * DAY_MS };
    const watch = new ClockWatch({
      db,
      clock: { now: () => clocks.database },
      // The process's own clock begins anywhere.
      monotonic: () => clocks.own,
      log,
    });
    /** The instant that a duty was given to delete by; null if it has to wait. */
    async function judge() {
      let judgedAt: number | null = null;
      await watch.delete(async (now) => {
        judgedAt = now;
      });
      return judgedAt as number | null;
    }
    function run(ms: number) {
      clocks.database += ms;
      clocks.own += ms;
    }
    return {
      async tick(ms = 0) {
        run(ms);
        await setTime(clocks.database);
        return judge();
      },
      /** Judges as a process that was frozen for `ms` does before it has measured the database's clock again. */
      thaw(ms: number) {
        run(ms);
        return judge();
      },
      leap: (ms: number) => {
        clocks.database += ms;
      },
      nowIfSteadyFor: (ms: number) => watch.nowIfSteadyFor(ms),
      mayFire: () => watch.mayFire(),
      waitMs: () => watch.waitMs(),
      get at() {
        return clocks.database;
      },
    };
  }

  test("deletes by the clock while the clock runs evenly", async () => {
    const watch = startWatch();
    expect(watch.nowIfSteadyFor(0)).toBeNull();
    for (let minute = 0; minute < 5; minute++) expect(await watch.tick(MINUTE_MS)).toBe(watch.at);
    watch.leap(500);
    expect(await watch.tick(MINUTE_MS)).toBe(watch.at);
    expect(watch.waitMs()).toBe(0);
  });

  test("lets no schedule fire for a minute after a leap ahead by more than a firing may be late, or until it leaps back", async () => {
    const watch = startWatch();
    for (const [leapMs, mayFire] of [
      [10 * MINUTE_MS, true],
      [-30 * DAY_MS, true],
      [30 * DAY_MS, false],
      [-30 * DAY_MS, true],
      [10 * MINUTE_MS, true],
      [30 * DAY_MS, false],
      [MINUTE_MS, false],
      [-MINUTE_MS, false],
      [-20 * DAY_MS, false],
      [-10 * DAY_MS, true],
      [11 * MINUTE_MS, false],
    ] as const) {
      await watch.tick(MINUTE_MS / 2);
      watch.leap(leapMs);
      expect([leapMs, watch.mayFire()]).toEqual([leapMs, mayFire]);
    }
    await watch.tick(MINUTE_MS - 1);
    expect(watch.mayFire()).toBe(false);
    await watch.tick(1);
    expect(watch.mayFire()).toBe(true);
  });

  test.each([
    ["ahead", 30 * DAY_MS],
    ["back", -30 * DAY_MS],
    ["ahead by a minute", MINUTE_MS],
  ])("waits for an hour once the clock has leapt %s, and again once it has leapt back", async (_, leapMs) => {
    const watch = startWatch();
    await watch.tick(MINUTE_MS);
    for (const ms of [leapMs, -leapMs]) {
      watch.leap(ms);
      expect(watch.nowIfSteadyFor(0)).toBe(watch.at);
      expect(watch.nowIfSteadyFor(1)).toBeNull();
      expect(await watch.tick()).toBeNull();
      for (let minute = 0; minute < 60; minute++) expect(await watch.tick(MINUTE_MS - 1)).toBeNull();
      expect(watch.waitMs()).toBeWithin(1, MINUTE_MS);
      expect(await watch.tick(MINUTE_MS)).toBe(watch.at);
      expect(watch.waitMs()).toBe(0);
    }
  });

  test("waits in a process that starts while the clock is wrong, and in one that takes over", async () => {
    const before = startWatch();
    await before.tick(MINUTE_MS);
    const within = startWatch({ at: before.at + 400 * DAY_MS });
    expect(await within.tick()).toBeNull();
    // A worker that takes over continues the wait that another began, and waits no longer.
    const mate = startWatch({ at: within.at });
    expect(await mate.tick(MINUTE_MS)).toBeNull();
    const later = startWatch({ at: before.at + MINUTE_MS });
    expect(await later.tick()).toBeNull();
    for (let minute = 0; minute < 59; minute++) expect(await later.tick(MINUTE_MS)).toBeNull();
    const successor = startWatch({ at: later.at });
    expect(await successor.tick(MINUTE_MS)).toBe(successor.at);
  });

  test("waits in a process that was frozen while the clock leapt, and takes back no note of another", async () => {
    const [frozen, seeing] = [startWatch(), startWatch()];
    for (const watch of [frozen, seeing]) await watch.tick();
    for (let minute = 0; minute < 20; minute++) await seeing.tick(MINUTE_MS);
    seeing.leap(15_000);
    expect(await seeing.tick(MINUTE_MS)).toBeNull();
    const leaptAt = seeing.at;
    expect(await seeing.tick(MINUTE_MS)).toBeNull();
    expect(await frozen.thaw(22 * MINUTE_MS)).toBeNull();
    expect(frozen.nowIfSteadyFor(0)).toBeNull();
    const mate = startWatch({ at: seeing.at });
    expect(await mate.tick()).toBeNull();
    expect(mate.nowIfSteadyFor(MINUTE_MS)).toBe(leaptAt + MINUTE_MS);
    expect(mate.nowIfSteadyFor(MINUTE_MS + 1)).toBeNull();
  });

  test("waits in a process that was frozen while the clock was set right", async () => {
    const frozen = startWatch();
    await frozen.tick();
    const right = startWatch({ at: frozen.at - 30 * DAY_MS });
    for (let minute = 0; minute < 61; minute++) await right.tick(MINUTE_MS);
    expect(await right.tick(MINUTE_MS)).toBe(right.at);
    expect(await frozen.thaw(62 * MINUTE_MS)).toBeNull();
    frozen.leap(right.at - frozen.at);
    expect(await frozen.tick()).toBeNull();
    for (let minute = 0; minute < 59; minute++) expect(await frozen.tick(MINUTE_MS)).toBeNull();
    expect(await frozen.tick(MINUTE_MS)).toBe(frozen.at);
  });

  test("keeps the later of two leaps, whoever notes it first", async () => {
    const [frozen, seeing] = [startWatch(), startWatch()];
    for (const watch of [frozen, seeing]) {
      await watch.tick();
      watch.leap(MINUTE_MS);
      // The first leap is seen by both, and one is frozen before it notes it.
      expect(watch.nowIfSteadyFor(1)).toBeNull();
    }
    await seeing.tick(5 * MINUTE_MS);
    seeing.leap(MINUTE_MS);
    expect(await seeing.tick()).toBeNull();
    expect(await frozen.thaw(5 * MINUTE_MS)).toBeNull();
    const mate = startWatch({ at: seeing.at });
    await mate.tick(MINUTE_MS);
    expect(mate.nowIfSteadyFor(MINUTE_MS)).toBe(mate.at);
    expect(mate.nowIfSteadyFor(MINUTE_MS + 1)).toBeNull();
  });

  test("waits in a process that begins after a leap that one with an older leap in mind has not seen", async () => {
    const older = startWatch();
    await older.tick();
    older.leap(MINUTE_MS);
    for (let minute = 0; minute < 60; minute++) expect(await older.tick(MINUTE_MS)).toBeNull();
    expect(await older.tick(MINUTE_MS)).toBe(older.at);
    const begun = startWatch({ at: older.at + 30 * DAY_MS });
    await setTime(begun.at);
    expect(await older.thaw(0)).toBeNull();
    for (let minute = 0; minute < 59; minute++) expect(await begun.tick(MINUTE_MS)).toBeNull();
    expect(await begun.tick(MINUTE_MS)).toBe(begun.at);
  });

  test("notes a leap that it saw while Postgres did not answer", async () => {
    const watch = startWatch();
    await watch.tick(MINUTE_MS);
    await store.query("ALTER TABLE clock_watch RENAME TO clock_away");
    watch.leap(5 * MINUTE_MS);
    await watch.tick(MINUTE_MS).catch(() => undefined);
    await store.query("ALTER TABLE clock_away RENAME TO clock_watch");
    expect(await watch.tick(MINUTE_MS)).toBeNull();
    const mate = startWatch({ at: watch.at });
    expect(await mate.tick(MINUTE_MS)).toBeNull();
  });
});

describe("a clock that is days ahead for a minute", () => {
  let store: TestStore;
  let clock: ManualClock;
  beforeAll(async () => {
    store = await startStore();
    clock = await startManualClock(store.url, { isReal: true });
  });
  afterAll(async () => {
    clock.stop();
    await store.stop();
  });

  const FACTS = `
    SELECT (SELECT count(*)::int FROM idempotency_keys) AS keys, (SELECT count(*)::int FROM firings) AS firings,
           (SELECT count(*)::int FROM ended_deliveries) AS deliveries, (SELECT count(*)::int FROM events) AS events,
           (SELECT count(*)::int FROM nodes) AS nodes,
           ARRAY (SELECT inhrelid::regclass::text FROM pg_inherits
                   WHERE inhparent = ANY ('{runs_hobby,runs_pro,runs_scale,runs_enterprise}'::regclass[]) ORDER BY 1) AS tables`;

  /** A turn of both duties that delete. */
  async function doDuties(watch: ClockWatch): Promise<void> {
    const duties = listDuties(RESCUE_OPTIONS, watch, createInsights());
    for (const { name, run } of duties)
      if (name === "purge" || name === "retention") await run({ db: store.db, log } as Cell);
  }
  const startWatch = () => new ClockWatch({ db: store.db, clock, log, monotonic: () => performance.now() });

  test("deletes no history, neither through a worker that ran before nor through one that starts then", async () => {
    await store.query(
      `INSERT INTO idempotency_keys (created_at, project_no, environment, digest, request_hash, job_ids)
       VALUES (now(), 1, 1, '', '', '{}')`,
    );
    await store.query("INSERT INTO firings (fired_for, schedule_id) VALUES (now(), gen_random_uuid())");
    await store.query(
      `INSERT INTO ended_deliveries (ended_at, project_no, environment, region, status, attempts, id, webhook_id, event_id)
       VALUES (now(), 1, 1, 0, 0, 1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid())`,
    );
    await store.query(
      `INSERT INTO events (occurred_at, started_at, project_no, duration_ms, environment, region, type, attempt, run_status,
                           id, api_version)
       VALUES (now(), now(), 1, 1, 1, 0, 0, 1, 1, gen_random_uuid(), '2026-11-01')`,
    );
    await declareNodeDead(store.db, await store.addNode());
    await store.addNode();
    const watch = startWatch();
    await doDuties(watch);
    const facts = await store.query(FACTS);
    expect(facts).toMatchObject([{ keys: 1, firings: 1, deliveries: 1, events: 1, nodes: 2 }]);
    await clock.leapTo(clock.now() + 400 * DAY_MS);
    for (const judge of [watch, startWatch()]) await doDuties(judge);
    expect(await store.query(FACTS)).toEqual(facts);
    // Once the clock is found to be right after all, old rows are deleted, and a few of the tables in each turn.
    await clock.leapTo(clock.now() + 61 * MINUTE_MS);
    await store.query(
      "UPDATE clock_watch SET steady_since = steady_since - interval '1 day', seen_at = seen_at + interval '61 min'",
    );
    const tables = async () => (await store.query<{ tables: string[] }>(FACTS))[0]?.tables ?? [];
    const before = await tables();
    await doDuties(startWatch());
    expect(await store.query(FACTS)).toMatchObject([
      { keys: 0, firings: 0, deliveries: 0, events: 0, nodes: 1 },
    ]);
    const left = await tables();
    expect(before.filter((name) => !left.includes(name))).toHaveLength(2);
  });
});
