import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import fc from "fast-check";
import { keyCause } from "../../../test/support/cause.ts";
import {
  createIdSource,
  idToUuid,
  JOB_PREFIX,
  REQUEST_PREFIX,
  retypeId,
  SCHEDULE_PREFIX,
} from "../../domain/ids.ts";
import { ENVIRONMENTS, type ProjectNo, REGIONS } from "../../domain/scope.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { type Created, createJobs, type JobToCreate } from "./job-creation.ts";

setDefaultTimeout(600_000);

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const ids = createIdSource(randomBytes);
const LISTS = 120;
const DAY_MS = 86_400_000;

/** A database that notes the names of its statements. */
function noting(): { db: Database; names: string[] } {
  const names: string[] = [];
  const run: Database["run"] = (name, text, values) => {
    names.push(name);
    return store.db.run(name, text, values);
  };
  return { db: { ...store.db, run }, names };
}

const lanesOf = (jobs: readonly JobToCreate[]) =>
  new Set(jobs.map((job) => `${job.projectNo}/${job.region}/${job.environment}/${job.shard}`));

/** A job of the project `owner`, whose number is put in later. */
type Wish = Omit<JobToCreate, "projectNo"> & { owner: "rich" | "poor" };
const wish = fc
  .record({
    owner: fc.constantFrom("rich", "rich", "rich", "rich", "poor"),
    environment: fc.constantFrom(...ENVIRONMENTS),
    region: fc.constantFrom(...REGIONS),
    shard: fc.constantFrom(3, 4),
    targetUrl: fc.webUrl(),
    payload: fc.json(),
    runAt: fc.integer({ min: -60_000, max: 3_650 * DAY_MS }).map((ms) => Date.now() + ms),
    maxAttempts: fc.integer({ min: 1, max: 25 }),
    baseSeconds: fc.integer({ min: 1, max: 86_400 }),
    capSeconds: fc.integer({ min: 1, max: 86_400 }),
    cause: fc.constantFrom("none", "own", "other"),
    // A list with a job of a schedule goes the long way.
    scheduleId: fc.constantFrom(...Array.from({ length: 30 }, (_, index) => index === 0)),
    trace: fc.option(
      fc.record({
        traceId: fc.uint8Array({ minLength: 16, maxLength: 16 }).map((bytes) => bytes.toHex()),
        spanId: fc.uint8Array({ minLength: 8, maxLength: 8 }).map((bytes) => bytes.toHex()),
        isSampled: fc.boolean(),
      }),
    ),
  })
  .map(({ cause, scheduleId, ...facts }): Wish => {
    const id = ids.next(JOB_PREFIX, Date.now());
    const requestId = cause === "own" ? retypeId(id, REQUEST_PREFIX) : ids.next(REQUEST_PREFIX, Date.now());
    return {
      ...{ ...facts, id, cause: cause === "none" ? null : { ...keyCause(), requestId } },
      ...(scheduleId && { scheduleId: ids.next(SCHEDULE_PREFIX, Date.now()) }),
    };
  });

/**
 * Makes the jobs uniform: what areUniform compares is the first job's. Only the first keeps its schedule, since one is enough for
 * the long way.
 */
function uniform([first, ...others]: readonly Wish[]): Wish[] {
  if (first === undefined) return [];
  const { owner, environment, region, maxAttempts, baseSeconds, capSeconds, cause } = first;
  const common = { owner, environment, region, maxAttempts, baseSeconds, capSeconds };
  const rest = others.map(({ scheduleId: _, ...one }): Wish => {
    const requestId = one.cause?.requestId ?? ids.next(REQUEST_PREFIX, Date.now());
    const ofKey = cause === null ? null : { ...cause, requestId };
    return { ...one, ...common, cause: ofKey };
  });
  return [first, ...rest];
}

/** A way to create jobs, with projects of its own: one whose month has runs left, and one whose month has none. */
interface Way {
  rich: ProjectNo;
  poor: ProjectNo;
  create(jobs: readonly JobToCreate[]): Promise<Created[]>;
}

async function addWay(create: Way["create"]): Promise<Way> {
  const [rich, poor] = [await store.addProject(), await store.addProject({ plan: "hobby" })];
  await store.query("UPDATE flows SET month_runs = month_runs_max WHERE project_no = $1", [poor]);
  return { rich, poor, create };
}

/** The answers and the rows of creating the jobs twice. An attempt that is due at once is due at its statement's instant: "now". */
async function outcomeOf(way: Way, wishes: readonly Wish[]) {
  const jobs = wishes.map(({ owner, ...facts }): JobToCreate => ({ ...facts, projectNo: way[owner] }));
  const askedAt = Date.now();
  const answers = [...(await way.create(jobs)), ...(await way.create(jobs.slice(0, 2)))];
  const plain = (dueAt: number) => (dueAt <= Date.now() + 1_000 && dueAt >= askedAt - 1_000 ? "now" : dueAt);
  const ownerOf = (projectNo: ProjectNo) => (projectNo === way.rich ? "rich" : "poor");
  const told = answers.map((answer) =>
    answer.kind !== "created"
      ? answer.kind
      : answer.owed.map(({ projectNo, dueAt, ...owed }) => ({
          ...owed,
          at: plain(dueAt),
          of: ownerOf(projectNo),
        })),
  );
  const rowsOf = async (table: string, order: string) => {
    const text = `SELECT *, project_no = $1 AS rich FROM ${table} WHERE project_no IN ($1, $2) ORDER BY ${order}`;
    const rows = await store.query<Record<string, unknown>>(text, [way.rich, way.poor]);
    return rows.map(({ project_no: _, due_at, ...row }) =>
      due_at instanceof Date ? { ...row, due_at: plain(due_at.getTime()) } : row,
    );
  };
  const rows = [
    await rowsOf("jobs", "id"),
    await rowsOf("open_jobs", "job_id"),
    await rowsOf("lanes", "region, environment"),
  ];
  await store.query("DELETE FROM jobs WHERE project_no IN ($1, $2)", [way.rich, way.poor]);
  await store.query("DELETE FROM open_jobs WHERE project_no IN ($1, $2)", [way.rich, way.poor]);
  return { told, rows };
}

test("the short way and the long way answer the same and leave the same rows", async () => {
  const { db, names } = noting();
  const long = await addWay((jobs) => createJobs(store.db, jobs, new Set()));
  const short = await addWay((jobs) => createJobs(db, jobs, lanesOf(jobs)));
  const sizes = fc.oneof(fc.constant(1), fc.integer({ min: 2, max: 12 }));
  const lists = sizes
    .chain((size) => fc.array(wish, { minLength: size, maxLength: size }))
    .map((list) => {
      // Sometimes an id stands twice in one statement.
      const [first] = list;
      return first !== undefined && list.length % 4 === 0 ? [...list, first] : list;
    })
    .chain((list) => fc.constantFrom(list, uniform(list)));
  await fc.assert(
    fc.asyncProperty(lists, async (list) => {
      // The short way is for lanes that have their rows.
      const places = list.map(({ environment, region, shard }) => [environment, region, shard] as const);
      for (const [environment, region, shard] of places) {
        const marker = { environment, region, shard, id: ids.next(JOB_PREFIX, Date.now()) };
        for (const way of [long, short])
          await createJobs(store.db, [store.newJob(way.rich, marker)], new Set());
      }
      for (const { rich } of [long, short]) {
        await store.query("DELETE FROM jobs WHERE project_no = $1", [rich]);
        await store.query("DELETE FROM open_jobs WHERE project_no = $1", [rich]);
      }
      const lastShards = new Map(
        places.map(([environment, region, shard]) => [`${environment} ${region}`, shard]),
      );
      const steady = list.map((one) => ({
        ...one,
        shard: lastShards.get(`${one.environment} ${one.region}`) ?? 0,
      }));
      expect(await outcomeOf(short, steady)).toEqual(await outcomeOf(long, steady));
    }),
    { numRuns: LISTS },
  );
  for (const name of ["create_ordinary_jobs", "create_uniform_jobs", "create_ordinary_job", "create_jobs"])
    expect(names).toContain(name);
});

describe("the short way", () => {
  test("is one statement for ordinary jobs of several projects", async () => {
    const projects = [await store.addProject(), await store.addProject({ plan: "hobby" })];
    const jobs = projects.flatMap((no) => [store.newJob(no), store.newJob(no, { region: "eu-central" })]);
    const { db, names } = noting();
    const answers = await createJobs(db, jobs, lanesOf(jobs));
    expect(answers.map(({ kind }) => kind)).toEqual(["created", "created", "created", "created"]);
    expect(names).toEqual(["create_ordinary_jobs"]);
  });

  test("keeps projects apart whose jobs have everything else in common", async () => {
    const jobs = [store.newJob(await store.addProject()), store.newJob(await store.addProject())];
    const { db, names } = noting();
    await createJobs(db, jobs, lanesOf(jobs));
    expect(names).toEqual(["create_ordinary_jobs"]);
    const rows = await store.query<{ id: string; project_no: ProjectNo }>(
      "SELECT id, project_no FROM jobs WHERE id = ANY ($1)",
      [jobs.map(({ id }) => idToUuid(id))],
    );
    const projectOf = new Map(rows.map(({ id, project_no }) => [id, project_no]));
    expect(jobs.map(({ id }) => projectOf.get(idToUuid(id)))).toEqual(jobs.map((job) => job.projectNo));
  });

  test.each([
    ["tags", { tags: ["a"] }, "create_uniform_jobs_tagged"],
    ["targets", { targetUrl: "https://other.example/hook" }, "create_uniform_jobs"],
    ["environments", { environment: "development" as const }, "create_ordinary_jobs"],
    ["regions", { region: "eu-central" as const }, "create_ordinary_jobs"],
    ["numbers of attempts", { maxAttempts: 7 }, "create_ordinary_jobs"],
    ["base delays", { baseSeconds: 7 }, "create_ordinary_jobs"],
    ["longest delays", { capSeconds: 7 }, "create_ordinary_jobs"],
    ["API keys", { cause: { ...keyCause(), keyNo: 1 } }, "create_ordinary_jobs"],
    ["origins, an API key and none", { cause: null }, "create_ordinary_jobs"],
    ["tags and regions", { tags: ["a"], region: "eu-central" as const }, "create_ordinary_jobs_tagged"],
  ])("is one statement for jobs of different %s, and each keeps its own", async (_, facts, statement) => {
    const project = await store.addProject();
    const jobs = [{}, facts, {}].map((own) => store.newJob(project, { cause: keyCause(), ...own }));
    const { db, names } = noting();
    await createJobs(db, jobs, lanesOf(jobs));
    expect(names).toEqual([statement]);
    const rows = await store.query(
      `SELECT target_url AS "targetUrl", environment, region, max_attempts AS "maxAttempts",
              base_seconds AS "baseSeconds", cap_seconds AS "capSeconds", key_no AS "keyNo", tags
         FROM jobs WHERE project_no = $1 ORDER BY id`,
      [project],
    );
    expect(rows).toEqual(
      jobs.map(({ targetUrl, maxAttempts, baseSeconds, capSeconds, ...job }) => ({
        ...{ targetUrl, maxAttempts, baseSeconds, capSeconds },
        environment: environmentCode(job.environment),
        region: regionCode(job.region),
        keyNo: job.cause?.keyNo ?? null,
        tags: job.tags ?? null,
      })),
    );
  });

  test("is one statement for a job alone, and leaves one whose id exists already to the long way", async () => {
    const project = await store.addProject();
    const job = store.newJob(project);
    const { db, names } = noting();
    const [first, second] = [
      await createJobs(db, [job], lanesOf([job])),
      await createJobs(db, [job], lanesOf([job])),
    ];
    expect([first, second].map(([answer]) => answer?.kind)).toEqual(["created", "created"]);
    expect(names).toEqual(["create_ordinary_job", "create_ordinary_job", "create_jobs"]);
    expect(
      await store.query("SELECT count(*)::int AS n FROM open_jobs WHERE project_no = $1", [project]),
    ).toEqual([{ n: 1 }]);
  });

  test.each([
    [
      "an Idempotency-Key",
      { key: { digest: randomBytes(32), requestHash: randomBytes(32) } },
      ["create_jobs_keyed"],
    ],
    ["a lane that may be new", { region: "us-west" as const }, ["create_jobs"]],
    ["a schedule", { scheduleId: ids.next(SCHEDULE_PREFIX, Date.now()) }, ["create_jobs"]],
  ])("leaves jobs with %s to the long way", async (_, facts, statements) => {
    const project = await store.addProject();
    const ordinary = store.newJob(project);
    const { db, names } = noting();
    const answers = await createJobs(db, [ordinary, store.newJob(project, facts)], lanesOf([ordinary]));
    expect(answers.map(({ kind }) => kind)).toEqual(["created", "created"]);
    expect(names).toEqual(statements);
  });

  test("leaves a statement with an id that exists already to the long way, which creates the others", async () => {
    const project = await store.addProject();
    const jobs = [store.newJob(project), store.newJob(project)];
    const lanes = lanesOf(jobs);
    await createJobs(store.db, jobs.slice(0, 1), lanes);
    const { db, names } = noting();
    expect((await createJobs(db, jobs, lanes)).map(({ kind }) => kind)).toEqual(["created", "created"]);
    expect(names).toEqual(["create_uniform_jobs", "create_jobs"]);
    const [row] = await store.query<{ count: number }>(
      "SELECT count(*)::int AS count FROM open_jobs WHERE project_no = $1",
      [project],
    );
    expect(row?.count).toBe(2);
  });
});

test("as many due jobs without a flow key may start as their project has permits free", async () => {
  const [two, held] = [await store.addProject({ concurrency: 2 }), await store.addProject()];
  await store.query("UPDATE flows SET held = true WHERE project_no = $1", [held]);
  const due = { runAt: Date.now() - 60_000 };
  const jobsOf = () => [
    store.newJob(two, { runAt: Date.now() + 60_000 }),
    ...Array.from({ length: 3 }, () => store.newJob(two, due)),
    store.newJob(held, due),
  ];
  const flowing = store.newJob(two, { ...due, flow: { key: "a", concurrency: 5 } });
  const mayStart = async (jobs: JobToCreate[], lanes: Set<string>) =>
    (await createJobs(store.db, jobs, lanes)).map((answer) => answer.kind === "created" && answer.mayStart);
  const expected = [false, true, true, false, false];
  const jobs = jobsOf();
  expect(await mayStart(jobs, lanesOf([]))).toEqual(expected);
  expect(await mayStart(jobsOf(), lanesOf(jobs))).toEqual(expected);
  expect(await mayStart([flowing, ...jobsOf()], lanesOf([]))).toEqual([false, ...expected]);
  expect(await mayStart([store.newJob(two, due)], lanesOf(jobs))).toEqual([true]);
  await store.query("UPDATE flows SET production_jobs = 2 WHERE project_no = $1", [two]);
  expect(await mayStart([store.newJob(two, due)], lanesOf(jobs))).toEqual([false]);
});
