import { createHash, randomBytes } from "node:crypto";
import { createInProcessBus } from "../bus/in-process.ts";
import { createIdSource, KEY_PREFIX, PROJECT_PREFIX, REQUEST_PREFIX } from "../domain/ids.ts";
import { makeKey } from "../domain/key.ts";
import { HOME_REGION } from "../domain/plan.ts";
import { ENVIRONMENTS } from "../domain/scope.ts";
import { makeSecret } from "../domain/signing.ts";
import { NEWEST_API_VERSION } from "../domain/version.ts";
import { createLog, type ProcessLog } from "../platform/log.ts";
import { createMetrics } from "../platform/metrics/metrics.ts";
import type { Seal } from "../platform/seal/seal.ts";
import { NO_TRACES } from "../platform/traces/traces.ts";
import type { Database, Transaction } from "../store/database/database.ts";
import { createProject, type ProjectRow } from "../store/resources/projects.ts";
import type { Cell } from "./cell.ts";

/**
 * A process that has just started is slow: its code is not compiled, and its connections have no plans. So it does its
 * hot work a few times before it says that it is ready, with a project of its own, on several connections. Each works in
 * a transaction that is rolled back; the messages reach nobody, and the metrics are thrown away. Others see gaps in
 * numbers, such as those of projects, and locks. Locks on the tables of jobs and runs last for a round; locks on the
 * rehearsal's own project, key and node last until it ends.
 */
export interface Rehearsal {
  /** Like the process's own cell, except that its database is one transaction and its bus ends in this process. */
  cell: Cell;
  project: ProjectRow;
  /** A key of the project's production environment. */
  key: string;
  /**
   * Takes so many steps, or fewer if the time is over, in rounds. When a round's time is over, its last step is
   * finished, and the round is rolled back. A step throws if something does not go as it would at work.
   */
  takeSteps(stepCount: number, step: (index: number) => Promise<void>): Promise<void>;
}

/** The longest time that one rehearsal takes. */
const REHEARSAL_MS_MAX = 500;
/** A round is short, because others may wait for its locks, such as retention for the tables of runs. */
const ROUND_MS = 30;
/** Under ordinary load one statement of a kind is under way at once, so few connections are in use. */
const CONNECTIONS = 2;

class RehearsalIsOver extends Error {}

/** Rehearses on several connections at once. Never throws: a rehearsal that fails leaves a process that starts slowly. */
export async function rehearse(
  own: Cell,
  seal: Seal,
  act: (rehearsal: Rehearsal) => Promise<void>,
  msMax = REHEARSAL_MS_MAX,
): Promise<void> {
  const over = Promise.withResolvers<void>();
  const timer = setTimeout(over.resolve, msMax);
  const rehearsals = Array.from({ length: CONNECTIONS }, () => rehearseOnce(own, seal, act, over.promise));
  const begunAt = performance.now();
  await Promise.race([Promise.all(rehearsals), over.promise]);
  clearTimeout(timer);
  own.log.debug({ tookMs: Math.round(performance.now() - begunAt) }, "rehearsed");
}

async function rehearseOnce(
  own: Cell,
  seal: Seal,
  act: (rehearsal: Rehearsal) => Promise<void>,
  over: Promise<void>,
): Promise<void> {
  let isOver = false;
  const end = () => {
    isOver = true;
  };
  void over.then(end);
  /** The first error before the end. Errors that follow from it tell less. */
  let failure: unknown = null;
  const fail = (error: unknown) => {
    if (!isOver) failure ??= error;
  };
  const check = () => {
    if (isOver) throw new RehearsalIsOver();
  };
  const bus = createInProcessBus(SILENT);
  try {
    await own.db.transact(async (tx) => {
      check();
      const db = untilOver(tx, check, fail);
      const cell = { ...own, db, bus, log: SILENT, metrics: createMetrics(), traces: NO_TRACES };
      const { project, key } = await createRehearsalProject(db, seal, own.clock.now());
      check();
      const takeSteps: Rehearsal["takeSteps"] = (stepCount, step) =>
        takeStepsInRounds(db, stepCount, step, () => isOver);
      await Promise.race([act({ cell, project, key, takeSteps }).catch(fail), over]);
      // The rest of `act` may send no statement: after the rollback a statement would commit by itself.
      end();
      // The client takes the rollback only once the statement under way has ended.
      await db.ended();
      throw new RehearsalIsOver();
    });
  } catch (error) {
    if (!(error instanceof RehearsalIsOver)) fail(error);
  } finally {
    end();
    await bus.close();
  }
  if (failure !== null) own.log.warn({ err: failure }, "rehearsal.failed");
}

async function takeStepsInRounds(
  db: Database,
  stepCount: number,
  step: (index: number) => Promise<void>,
  isOver: () => boolean,
): Promise<void> {
  await db.run("begin_rounds", "SAVEPOINT round", []);
  for (let index = 0; index < stepCount && !isOver(); ) {
    const endsAt = performance.now() + ROUND_MS;
    do await step(index++);
    while (index < stepCount && !isOver() && performance.now() < endsAt);
    // Postgres releases the locks that were taken since the savepoint.
    await db.run("end_round", "ROLLBACK TO SAVEPOINT round", []);
  }
}

/** The rehearsal's transaction. It takes no statement once the rehearsal is over. */
function untilOver(
  tx: Transaction,
  check: () => void,
  fail: (error: unknown) => void,
): Database & { ended(): Promise<unknown> } {
  let latest: Promise<unknown> = Promise.resolve();
  const db = {
    ended: () => latest,
    get drizzle() {
      check();
      return tx.drizzle;
    },
    async run<Row>(name: string, text: string, values: unknown[]): Promise<Row[]> {
      check();
      const statement = tx.run<never>(name, text, values);
      latest = statement.catch(() => undefined);
      return statement.catch((error) => {
        fail(error);
        // A failed statement is not sent again, as it would be while Postgres is away.
        throw new RehearsalIsOver("", { cause: error });
      });
    },
    transact: <Result>(nested: (tx: Transaction) => Promise<Result>) => nested(db),
    close: async () => undefined,
  };
  return db;
}

const SILENT: ProcessLog = createLog({ level: "silent", name: "rehearsal" });

async function createRehearsalProject(
  db: Database,
  seal: Seal,
  now: number,
): Promise<{ project: ProjectRow; key: string }> {
  const ids = createIdSource(randomBytes);
  const key = makeKey("production", randomBytes);
  const project = await createProject(
    db,
    {
      id: ids.next(PROJECT_PREFIX, now),
      name: "rehearsal",
      plan: "enterprise",
      defaultRegion: HOME_REGION,
      apiVersion: NEWEST_API_VERSION,
      keys: [
        {
          id: ids.next(KEY_PREFIX, now),
          environment: "production",
          scope: "full",
          name: null,
          hash: createHash("sha256").update(key).digest(),
          expiresAt: null,
        },
      ],
      secrets: ENVIRONMENTS.map((environment) => ({
        id: ids.next("sec_", now),
        environment,
        sealed: seal.seal(makeSecret(randomBytes)),
      })),
    },
    { requestId: ids.next(REQUEST_PREFIX, now), operator: "rehearsal" },
  );
  return { project, key };
}
