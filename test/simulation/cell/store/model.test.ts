import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import pg from "pg";
import { ApiError } from "../../../../shared/domain/errors.ts";
import { noteClock } from "../../../../shared/store/database/clock-watch.ts";
import type { Database, PooledDatabase } from "../../../../shared/store/database/database.ts";
import { NodeDeclaredDead } from "../../../../shared/store/queue/claim.ts";
import { startStore, type TestStore } from "../../../../shared/store/test-support.ts";
import { openPatientDatabase } from "../../../support/database.ts";
import { firstRows, watchHosts } from "../first-rows.ts";
import { makePlan } from "../plan.ts";
import { Random } from "../random.ts";
import { TakenKey } from "./creations.ts";
import { answer, STATEMENTS } from "./model-statements.ts";
import { ModelSteps, WATCHED } from "./model-steps.ts";
import { type Instant, SECOND } from "./parameters.ts";
import { insertRows, readModel, readPostgres, SET_CLOCK } from "./postgres-rows.ts";
import type { Tables } from "./tables.ts";

setDefaultTimeout(600_000);

/**
 * Compares the model that stands in for Postgres with Postgres: the same random operations, asked by the store's own
 * functions, have the same answers and leave the same rows. SEED is the first seed, and ROUNDS says how many follow.
 */

const ROUNDS = Number(process.env.ROUNDS ?? 8);
const STEPS = 450;
const firstSeed = Number(process.env.SEED ?? 1);

let store: TestStore;
let postgres: PooledDatabase;
beforeAll(async () => {
  store = await startStore();
  await store.query(SET_CLOCK);
  postgres = openPatientDatabase(store.url, 2);
});
afterAll(async () => {
  await postgres.close();
  await store.stop();
});

/** The statements that were asked in all rounds. */
const asked = new Set<string>();
/** How often a probe in vain made another attempt the probe. Few rounds come there. */
let probedAgainCount = 0;

/** A statement may begin before the clock at which it has its locks. */
const time = { now: 0 as Instant, clock: 0 as Instant };

async function setTime(now: Instant, clock: Instant): Promise<void> {
  Object.assign(time, { now, clock });
  await store.query("UPDATE simulated.time SET now = $1, clock = $2", [now, clock]);
}

function databaseOf(tables: Tables): Database {
  const refuse = () => Promise.reject(new Error("the model runs named statements only"));
  const database: Database = {
    drizzle: undefined as never,
    async run(name, _text, values) {
      asked.add(name);
      try {
        return answer(tables, name, time, values) as never[];
      } catch (error) {
        if (!(error instanceof TakenKey)) throw error;
        throw Object.assign(new pg.DatabaseError("taken", 0, "error"), { code: "23505" });
      }
    },
    // No other process asks meanwhile.
    transact: (act) => act(database),
    close: refuse,
  };
  return database;
}

/** The answer, or the refusal, in a form that can be compared. Lists that a statement does not order are sorted. */
async function outcomeOf(answered: Promise<unknown>): Promise<unknown> {
  try {
    return sorted(await answered);
  } catch (error) {
    if (error instanceof ApiError || error instanceof NodeDeclaredDead)
      return `${error.name}: ${error.message}`;
    throw error;
  }
}

const ORDERED = new Set(["items", "answers"]);
/** Hashes of keys. The model has others than Postgres. */
const HASHES = new Set(["keyHash", "hash"]);
const withoutHashes = (value: unknown): unknown =>
  JSON.parse(JSON.stringify(value, (key, inner) => (HASHES.has(key) ? undefined : inner)));
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map((item) => JSON.stringify(sorted(item))).sort();
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value)
      .filter(([key]) => !HASHES.has(key))
      .map(([key, inner]) => [key, ORDERED.has(key) ? withoutHashes(inner) : sorted(inner)]),
  );
}

test.each(Array.from({ length: ROUNDS }, (_, round) => firstSeed + round))(
  "the model answers as Postgres does, and has the same rows (seed %p)",
  async (seed) => {
    const random = new Random(seed, "model");
    const plan = makePlan(seed);
    const tables = firstRows(plan, random);
    let now = plan.beginsAt * 1_000;
    watchHosts(tables, WATCHED, [0, 1, 2], now);
    await insertRows(store, tables);
    await setTime(now, now);
    const model = databaseOf(tables);
    const steps = new ModelSteps(random, tables, () => time.now);
    for (let step = 0; step < STEPS; step++) {
      now += Math.round(random.pick([0, 0.05, 0.3, 2, -0.4]) * random.next() * SECOND);
      await setTime(now, now + Math.round(random.pick([0, 0, 0.3, 4]) * random.next() * SECOND));
      const [name, ask] = steps.next();
      if (ask === null) continue;
      const place = `step ${step}: ${name}`;
      const expected = await outcomeOf(ask(postgres));
      const waits = new Map([...tables.target_hosts].map(([host, row]) => [host, row.probe_seconds]));
      expect({ place, answer: await outcomeOf(ask(model)) }).toEqual({ place, answer: expected });
      expect({ place, rows: readModel(tables) }).toEqual({ place, rows: await readPostgres(store) });
      for (const [host, { probe_seconds, probe }] of tables.target_hosts) {
        const before = waits.get(host) ?? 0;
        if (probe !== null && before > 0 && probe_seconds > before) probedAgainCount++;
      }
    }
  },
);

/** Statements whose answers decide nothing, or that are asked in another way than by these operations. */
const NOT_COMPARED = [
  "look_at_cell",
  "list_left_hosts",
  "forget_idle_left_hosts",
  "change_webhook",
  "find_insight_progress",
];

test("the model notes the clock as Postgres does, whatever lies between two notes", async () => {
  const random = new Random(firstSeed, "clock");
  const tables = firstRows(makePlan(firstSeed), random);
  tables.clock_watch = null;
  await insertRows(store, tables);
  const model = databaseOf(tables);
  let now = Date.UTC(2027, 0, 1) * 1_000;
  for (let note = 0; note < 200; note++) {
    now += random.pick([0, 1, -9, -11, 599, 601]) * SECOND;
    await setTime(now, now);
    const leaptAt = now / 1_000 + random.pick([-700_000, -5_000, 5_000]);
    const noted = random.chance(0.5) ? leaptAt : null;
    expect(await noteClock(model, noted)).toEqual(await noteClock(postgres, noted));
    expect((await readPostgres(store)).clock_watch).toEqual(readModel(tables).clock_watch);
  }
});

test("every statement of the model was compared", () => {
  expect(Object.keys(STATEMENTS).filter((name) => !asked.has(name))).toEqual(NOT_COMPARED);
  expect(probedAgainCount).toBeGreaterThan(0);
});
