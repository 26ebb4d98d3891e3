import { randomBytes } from "node:crypto";
import pg from "pg";
import { testCause } from "../../test/support/cause.ts";
import { openPatientDatabase, PATIENT } from "../../test/support/database.ts";
import { createMigratedDatabase } from "../../test/support/postgres.ts";
import { ApiError } from "../domain/errors.ts";
import { createIdSource, JOB_PREFIX, PROJECT_PREFIX, RUN_PREFIX } from "../domain/ids.ts";
import type { Plan } from "../domain/plan.ts";
import { type Environment, type ProjectNo, REGIONS, type Region } from "../domain/scope.ts";
import { NEWEST_API_VERSION } from "../domain/version.ts";
import { addNode } from "./cell/nodes.ts";
import type { Database } from "./database/database.ts";
import { type Claim, type Claimed, claimAttempts, type GrantedAttempt } from "./queue/claim.ts";
import { claimKeyed } from "./queue/claim-keyed.ts";
import { claimOrdinary } from "./queue/claim-ordinary.ts";
import { isPlain, type Settled, type Settlement, settleAttempts } from "./queue/settle.ts";
import { settleKeyed } from "./queue/settle-keyed.ts";
import { isLast, settleOrdinary } from "./queue/settle-ordinary.ts";
import { createJobs, type JobToCreate } from "./resources/job-creation.ts";
import { createProject } from "./resources/projects.ts";

const WAIT_MS_MAX = 120_000;
const LOOK_EVERY_MS = 5;

export interface Flow {
  development_jobs: number;
  production_jobs: number;
  returned: number;
  waiting: number;
  month_runs: number;
}

/** A migrated database of its own, and the first steps of every test of the store. */
export interface TestStore {
  db: Database;
  url: string;
  addProject(options?: { plan?: Plan; concurrency?: number }): Promise<ProjectNo>;
  addNode(): Promise<number>;
  /** Creates jobs, which are due unless told otherwise. Answers their ids, the oldest first. */
  addJobs(projectNo: ProjectNo, count: number, wish?: Partial<JobToCreate>): Promise<string[]>;
  newJob(projectNo: ProjectNo, wish?: Partial<JobToCreate>): JobToCreate;
  newRunId(): string;
  claimOf(projectNo: ProjectNo, jobId: string, wish?: Partial<Claim>): Claim;
  /** Claims one attempt and expects it to be granted. */
  start(
    nodeId: number,
    projectNo: ProjectNo,
    jobId: string,
    wish?: Partial<Claim>,
  ): Promise<{ claim: Claim; granted: GrantedAttempt }>;
  flow(projectNo: ProjectNo): Promise<Flow>;
  /** The number of attempts that are recorded as being on the wire. */
  onWire(projectNo: ProjectNo): Promise<number>;
  /** A session that the test may keep open. It ends with the store. */
  session(): Promise<pg.Client>;
  /**
   * Answers true once `countMin` sessions of this database, one unless told otherwise, wait for a lock, and false once `isOver` holds
   * before that.
   */
  untilBlocked(countMin?: number, isOver?: () => boolean): Promise<boolean>;
  query<R extends pg.QueryResultRow>(text: string, values?: unknown[]): Promise<R[]>;
  stop(): Promise<void>;
}

export async function startStore(options: { connections?: number } = {}): Promise<TestStore> {
  const database = await createMigratedDatabase("store");
  // Statements wait while a test holds locks and fills tables, and the machine may be busy.
  const db = openPatientDatabase(database.url, options.connections ?? 8);
  const ids = createIdSource(randomBytes);
  const sessions: pg.Client[] = [];
  const session = async () => {
    const client = new pg.Client({ connectionString: database.url, options: PATIENT });
    // The database is dropped while clients are connected.
    client.on("error", () => undefined);
    await client.connect();
    sessions.push(client);
    return client;
  };
  const direct = new pg.Pool({ connectionString: database.url, options: PATIENT });
  direct.on("error", () => undefined);
  const store: TestStore = {
    db,
    url: database.url,
    async addProject({ plan = "scale", concurrency } = {}) {
      const project = await createProject(
        db,
        {
          id: ids.next(PROJECT_PREFIX, Date.now()),
          name: "test",
          plan,
          defaultRegion: "us-east",
          apiVersion: NEWEST_API_VERSION,
          keys: [],
          secrets: (["development", "production"] as const).map((environment) => ({
            id: ids.next("sec_", Date.now()),
            environment,
            sealed: randomBytes(40),
          })),
        },
        testCause(),
      );
      if (concurrency !== undefined) {
        await direct.query("UPDATE flows SET concurrency = $2 WHERE project_no = $1", [
          project.no,
          concurrency,
        ]);
      }
      return project.no;
    },
    async addNode() {
      const name = `node-${randomBytes(6).toString("hex")}`;
      const id = await addNode(db, { kind: "delivery", name, regions: REGIONS, process: "test" });
      if (id === null) throw new Error(`the name ${name} is taken`);
      return id;
    },
    newJob: (projectNo, wish = {}) => ({
      id: ids.next(JOB_PREFIX, Date.now()),
      projectNo,
      environment: "production" as Environment,
      region: "us-east" as Region,
      shard: 0,
      targetUrl: "https://target.example/hook",
      payload: "{}",
      runAt: Date.now() - 1_000,
      maxAttempts: 5,
      baseSeconds: 1,
      capSeconds: 1,
      cause: null,
      ...wish,
    }),
    async addJobs(projectNo, count, wish) {
      const jobs = Array.from({ length: count }, () => store.newJob(projectNo, wish));
      await createJobs(db, jobs, new Set());
      return jobs.map((job) => job.id);
    },
    newRunId: () => ids.next(RUN_PREFIX, Date.now()),
    claimOf: (projectNo, jobId, wish = {}) => ({
      projectNo,
      environment: "production",
      region: "us-east",
      jobId,
      attempt: 1,
      runId: store.newRunId(),
      ...wish,
    }),
    async start(nodeId, projectNo, jobId, wish) {
      const claim = store.claimOf(projectNo, jobId, wish);
      const [answer] = await claimAttempts(db, nodeId, [claim]);
      if (answer?.kind !== "granted") throw new Error(`not granted but ${JSON.stringify(answer)}`);
      return { claim, granted: answer.attempt };
    },
    async flow(projectNo) {
      const [row] = await store.query<Record<keyof Flow, string>>(
        `SELECT development_jobs, production_jobs, returned, waiting, month_runs FROM flows WHERE project_no = $1`,
        [projectNo],
      );
      if (row === undefined) throw new Error(`no project ${projectNo}`);
      return {
        development_jobs: Number(row.development_jobs),
        production_jobs: Number(row.production_jobs),
        returned: Number(row.returned),
        waiting: Number(row.waiting),
        month_runs: Number(row.month_runs),
      };
    },
    async onWire(projectNo) {
      const [row] = await store.query<{ count: number }>(
        "SELECT count(*)::int AS count FROM open_jobs WHERE project_no = $1 AND node_id IS NOT NULL",
        [projectNo],
      );
      return row?.count ?? 0;
    },
    session,
    async untilBlocked(countMin = 1, isOver = () => false) {
      let isBlocked = false;
      await until(async () => {
        const [row] = await store.query<{ count: number }>(
          "SELECT count(*)::int AS count FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        );
        isBlocked = (row?.count ?? 0) >= countMin;
        return isBlocked || isOver();
      });
      return isBlocked;
    },
    query: async (text, values) => (await direct.query(text, values)).rows,
    async stop() {
      // A statement that ends in a deadlock runs again, so a test would not see the deadlock.
      const [server] = await store.query<{ deadlocks: number }>(
        "SELECT deadlocks::int AS deadlocks FROM pg_stat_database WHERE datname = current_database()",
      );
      await db.close();
      await direct.end();
      for (const client of sessions) await client.end();
      await database.drop();
      if (server?.deadlocks !== 0) throw new Error(`the statements met in ${server?.deadlocks} deadlocks`);
    },
  };
  return store;
}

/**
 * Repeats a test of something that holds for `timeMs` only. A failure after more than that time proves nothing, since
 * the machine may have stood still, so the test begins again. The time counts anew from each call of `begin`, and
 * the longest one decides; it counts from the start if `begin` is not called.
 */
export async function inTime(timeMs: number, act: (begin: () => void) => Promise<void>): Promise<void> {
  const giveUpAt = performance.now() + WAIT_MS_MAX;
  for (;;) {
    let begunAt = performance.now();
    let longestMs: number | null = null;
    const begin = () => {
      longestMs = longestMs === null ? 0 : Math.max(longestMs, performance.now() - begunAt);
      begunAt = performance.now();
    };
    try {
      return await act(begin);
    } catch (error) {
      const lastMs = performance.now() - begunAt;
      if (Math.max(longestMs ?? 0, lastMs) < timeMs || performance.now() > giveUpAt) throw error;
    }
  }
}

/** True if the statement was seen waiting for a lock; false if it ended first, since some statements wait for a moment only. */
export async function comesToWait(store: TestStore, statement: Promise<unknown>): Promise<boolean> {
  let isOver = false;
  const end = () => {
    isOver = true;
  };
  statement.then(end, end);
  return await store.untilBlocked(1, () => isOver);
}

/** Repeats the condition until it holds. Throws when the time is up. */
export async function until(
  condition: () => Promise<boolean> | boolean,
  waitMs = WAIT_MS_MAX,
): Promise<void> {
  const deadline = performance.now() + waitMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not so within ${waitMs} ms: ${condition}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

/** The settlement of a granted attempt, succeeded unless told otherwise. */
export function settlementOf(
  { claim, granted }: { claim: Claim; granted: Pick<GrantedAttempt, "runId"> | GrantedAttempt },
  wish: Partial<Settlement> = {},
): Settlement {
  return {
    projectNo: claim.projectNo,
    environment: claim.environment,
    region: claim.region,
    shard: 0,
    jobId: claim.jobId,
    runId: granted.runId,
    isPlain: "isTagged" in granted && isPlain(granted),
    status: "succeeded",
    responseStatus: 200,
    error: null,
    durationMs: 5,
    next: { status: "succeeded" },
    ...wish,
  };
}

/** The parts of a settlement whose attempt failed: it is retried at `dueAt` (at once if that is past), or the job is over. */
export function failedWith(next: { dueAt: number } | "over"): Partial<Settlement> {
  return {
    status: "failed",
    responseStatus: 500,
    error: "no",
    next:
      next === "over"
        ? { status: "failed" }
        : { status: "queued", waitMs: Math.max(0, next.dueAt - Date.now()) },
  };
}

/** The outcome of a change; "refused" if the domain refused it. */
export const orRefused = <Outcome>(change: Promise<Outcome>): Promise<Outcome | { kind: "refused" }> =>
  change.catch((error) => {
    if (error instanceof ApiError) return { kind: "refused" };
    throw error;
  });

/** Claims as a node does: by the short ways, and by the long way what these leave. Answers like claimAttempts. */
export async function claimShortFirst(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<Claimed[]> {
  const answers: (Claimed | null)[] = claims.map(() => null);
  const ordinary = async (db: Database, nodeId: number, asked: readonly Claim[]) =>
    (await claimOrdinary(db, nodeId, asked)).map(
      (attempt): Claimed | null => attempt && { kind: "granted", attempt },
    );
  for (const way of [ordinary, claimKeyed]) {
    const left = claims.flatMap((claim, index) => (answers[index] === null ? [{ claim, index }] : []));
    if (left.length === 0) break;
    const answered = await way(
      db,
      nodeId,
      left.map(({ claim }) => claim),
    );
    for (const [place, { index }] of left.entries()) answers[index] = answered[place] ?? null;
  }
  const rest = claims.filter((_, index) => answers[index] === null);
  const others = rest.length === 0 ? [] : await claimAttempts(db, nodeId, rest);
  return answers.map((answer) => answer ?? (others.shift() as Claimed));
}

/** No node has this number. */
const NO_NODE = 0;

/** Settles as a node does: by the short ways, and by the long way what these leave. Answers like settleAttempts. */
export async function settleShortFirst(db: Database, settlements: readonly Settlement[]): Promise<Settled> {
  const settled: Settled = { items: settlements.map(() => null), owed: [], freed: [] };
  const settle = async (
    which: (settlement: Settlement) => boolean,
    way: (asked: Settlement[]) => Promise<Pick<Settled, "items"> & Partial<Settled>>,
  ) => {
    const left = settlements.flatMap((settlement, index) =>
      settled.items[index] === null && which(settlement) ? [{ settlement, index }] : [],
    );
    if (left.length === 0) return;
    const { items, owed = [], freed = [] } = await way(left.map(({ settlement }) => settlement));
    for (const [place, { index }] of left.entries()) settled.items[index] = items[place] ?? null;
    settled.owed.push(...owed);
    settled.freed.push(...freed);
  };
  await settle(isLast, async (asked) => ({ items: await settleOrdinary(db, asked.filter(isLast)) }));
  await settle(isLast, (asked) =>
    settleKeyed(
      db,
      NO_NODE,
      asked.filter(isLast).map((settlement) => ({ ...settlement, nextRunId: null })),
    ),
  );
  await settle(
    () => true,
    (asked) => settleAttempts(db, asked),
  );
  return settled;
}

/** A way to claim and settle jobs. Every test of claims and settlements must pass with both ways. */
export interface Way {
  claim: typeof claimAttempts;
  settle: typeof settleAttempts;
}
export const WAYS: [name: string, way: Way][] = [
  ["the long way alone", { claim: claimAttempts, settle: settleAttempts }],
  ["the short way first", { claim: claimShortFirst, settle: settleShortFirst }],
];

export const kindsOf = (answers: readonly Claimed[]) => answers.map((answer) => answer.kind);
