import type { Config } from "../../../shared/platform/config.ts";
import { createGate, type Gate } from "../../../shared/platform/gate.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import { prepareTestClock } from "../../../shared/store/cell/test-clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import type { TestClock } from "./clock.ts";
import { createTally, type Tally } from "./tally.ts";

/** Ends the process with a sentence if a test clock is wanted beside something that does not live in its time. */
export function checkAloneOrExit({ databaseUrl, natsUrl }: Pick<Config, "databaseUrl" | "natsUrl">): void {
  const given = databaseUrl !== null ? "DATABASE_URL" : natsUrl !== null ? "NATS_URL" : null;
  if (given !== null)
    fail(`--test-clock runs one process over a Postgres of its own, and ${given} is set: unset it.`);
}

/**
 * Gives a new database its test clock, if one is wanted. A data folder that was used without a test clock stays without one,
 * and a folder that was used with one is used with one only. If that is not what is wanted, `stop` is called, and the process
 * ends with a sentence.
 */
export async function prepareTestClockOrExit(
  { testClock, dataDir }: { testClock: boolean; dataDir: string | null },
  url: string,
  stop: () => Promise<void>,
): Promise<void> {
  const state = await prepareTestClock(url, testClock);
  if (state === "ready" || state === "none") return;
  await stop();
  const data = dataDir === null ? "The database of DATABASE_URL" : `The data folder ${dataDir}`;
  fail(
    state === "marked"
      ? `${data} belongs to a test clock, and its rows may lie in the future: start it with npm start -- --test-clock${dataDir === null ? "" : ", or set DATA_DIR to another folder"}.`
      : `${data} was used without --test-clock, and a test clock would put it into the future for good: set DATA_DIR to another folder.`,
  );
}

/**
 * The cell of a worker and a delivery node under a test clock: the clock leaps only between their statements, and their deeds
 * are counted.
 */
export function ownCell(cell: Cell & { clock: TestClock }): { cell: Cell; gate: Gate; tally: Tally } {
  const gate = createGate();
  const { tally, metrics } = createTally(cell.metrics);
  return { cell: { ...cell, db: gated(cell.db, gate), metrics }, gate, tally };
}

/** Statements of the query builder pass the gate by: they are rare, and judge nothing by the time at which they run. */
function gated(db: Database, gate: Gate): Database {
  return {
    ...db,
    run: (name, text, values) => gate.within(() => db.run(name, text, values)),
    transact: (act) => gate.within(() => db.transact(act)),
  };
}

function fail(sentence: string): never {
  process.stderr.write(`${sentence}\n`);
  process.exit(1);
}
