import type { Database } from "../database/database.ts";
import { until } from "../test-support.ts";
import { closeSome } from "./closing.ts";
import { findOutset, type Outset } from "./progress.ts";
import { closableLevel, takeStep } from "./roll-up.ts";

/** Jobs are taken to be stored so much after the time in their ids. */
const LAG_MS = 3_000;

/**
 * The outset of a step, once no other database of the server and no autovacuum has an earlier transaction in progress. Such
 * transactions hold up a roll-up like those of its own database, and other tests use the same server.
 */
export async function outsetOf(db: Database, aheadMs = LAG_MS): Promise<Outset> {
  const [begun] = await db.run<{ next: string }>("ask_next_transaction", NEXT_TRANSACTION, []);
  await until(async () => (await db.run("list_others", OTHERS_BEFORE, [begun?.next])).length === 0);
  const outset = await findOutset(db);
  if (outset === null) throw new Error("there is no state of the roll-up");
  return { ...outset, now: outset.now + aheadMs };
}

const NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text AS next";
const OTHERS_BEFORE = `
SELECT pid FROM pg_stat_activity
 WHERE (datname IS DISTINCT FROM current_database() OR backend_type = 'autovacuum worker') AND backend_xid IS NOT NULL AND backend_xid::text::bigint < $1::bigint`;

/**
 * Rolls up all that has been committed by now, as if it were `aheadMs` later. Answers how many steps it took. Later commits are
 * left out: in small steps a slow machine would never catch up with them.
 */
export async function rollUp(db: Database, { aheadMs = LAG_MS, share = 1 } = {}): Promise<number> {
  const { now, settledBefore } = await outsetOf(db, aheadMs);
  for (let steps = 1; ; steps++) {
    const { isCaughtUp } = await takeStep(db, { ...(await outsetOf(db)), now, settledBefore }, share);
    if (isCaughtUp) return steps;
  }
}

/** Closes every bucket that can be closed. Answers how many steps it took. */
export async function closeAll(db: Database, projectsMax?: number): Promise<number> {
  for (let steps = 0; ; steps++) {
    const { progress } = await outsetOf(db);
    const level = closableLevel(progress);
    if (level === null) return steps;
    await closeSome(db, progress, level, projectsMax);
  }
}
