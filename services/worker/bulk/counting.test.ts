import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import {
  type BulkAction,
  type BulkFilter,
  OPEN_BULKS_MAX,
  readSelection,
} from "../../../shared/domain/bulk.ts";
import { ApiError } from "../../../shared/domain/errors.ts";
import {
  BULK_PREFIX,
  idTimeMs,
  idToUuid,
  JOB_PREFIX,
  retypeId,
  SCHEDULE_PREFIX,
  uuidToId,
} from "../../../shared/domain/ids.ts";
import type { ProjectNo, Scope } from "../../../shared/domain/scope.ts";
import { recordStatements } from "../../../shared/store/plan-test-support.ts";
import { LOOKED_AT_MAX } from "../../../shared/store/queue/bulk/candidates.ts";
import { settleAttempts } from "../../../shared/store/queue/settle.ts";
import { abortBulk, createBulk } from "../../../shared/store/resources/bulk-operations.ts";
import { cancelJob } from "../../../shared/store/resources/jobs-by-hand.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { HOSTILE_TEXTS } from "../../../test/contract/attack/hostile-values.ts";
import { keyCause } from "../../../test/support/cause.ts";
import { addFailedJobs, askFor, bulkOf, ids, startWorkerOf, type TestWorker } from "./test-support.ts";

let store: TestStore;
let nodeId: number;
let project: ProjectNo;
let worker: TestWorker;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  worker = await startWorkerOf(store);
});
beforeEach(async () => {
  project = await store.addProject();
});
afterAll(() => store.stop());

/** The ids of the members, by their positions. */
async function membersOf(id: string): Promise<string[]> {
  const rows = await store.query<{ job_id: string }>(
    "SELECT job_id FROM bulk_members WHERE bulk_id = $1 ORDER BY position",
    [idToUuid(id)],
  );
  return rows.map((row) => uuidToId(JOB_PREFIX, row.job_id));
}

async function count(action: BulkAction, filter: BulkFilter, projectNo = project): Promise<string[]> {
  const id = await askFor(store, projectNo, action, filter);
  await worker.countAll(id);
  const bulk = await bulkOf(store, projectNo, id);
  const members = await membersOf(id);
  expect(bulk).toMatchObject({ status: "running", matched: members.length, sample: members.slice(0, 5) });
  // The abort lets the environment's next operation have its turn.
  await abortBulk(store.db, { projectNo, environment: "production" }, id, keyCause(), null);
  return members;
}

describe("jobs to cancel", () => {
  test("are those that are not over, oldest first, of the environment alone", async () => {
    const [queued = "", running = "", canceled = "", onWire = ""] = await store.addJobs(project, 4);
    await store.addJobs(project, 2, { environment: "development" });
    await store.addJobs(await store.addProject(), 2);
    await addFailedJobs(store, nodeId, project, 1);
    await store.start(nodeId, project, running);
    await store.start(nodeId, project, onWire);
    const scope = { projectNo: project, environment: "production" as const };
    for (const id of [canceled, onWire]) await cancelJob(store.db, scope, id, keyCause());
    expect(await count("cancel", { all: true })).toEqual([queued, running]);
    expect(await count("cancel", { status: "queued" })).toEqual([queued]);
    expect(await count("cancel", { status: "running" })).toEqual([running]);
  });
});

describe("jobs to retry", () => {
  test("are those that failed, oldest first", async () => {
    await store.addJobs(project, 1);
    const failed = await addFailedJobs(store, nodeId, project, 3);
    const [between = ""] = await store.addJobs(project, 1);
    const next = failedWith({ dueAt: Date.now() + 60_000 });
    await settleAttempts(store.db, [settlementOf(await store.start(nodeId, project, between), next)]);
    expect(await count("retry", { all: true })).toEqual(failed);
    expect(await count("retry", { status: "failed" })).toEqual(failed);
  });

  test("are found by the error of their last run, in exactly this case and without wildcards", async () => {
    const errors = [
      "Refused by peer",
      "refused",
      'say "no" 100%',
      "line\nfeed\tend",
      "ünï 😀",
      "a_b",
      "a%b",
      "axb",
    ];
    const jobs: string[] = [];
    for (const error of errors) jobs.push(...(await addFailedJobs(store, nodeId, project, 1, { error })));
    const found = async (text: string) =>
      (await count("retry", { error_contains: text })).map((id) => errors[jobs.indexOf(id)]);
    expect(await found("efused")).toEqual(["Refused by peer", "refused"]);
    expect(await found("Refused")).toEqual(["Refused by peer"]);
    expect(await found("REFUSED")).toEqual([]);
    expect(await found('"no" 100%')).toEqual(['say "no" 100%']);
    expect(await found("feed\t")).toEqual(["line\nfeed\tend"]);
    expect(await found("😀")).toEqual(["ünï 😀"]);
    expect(await found("a_b")).toEqual(["a_b"]);
    expect(await found("%")).toEqual(['say "no" 100%', "a%b"]);
    expect(await found("\\")).toEqual([]);
  });

  test("are found by the last run alone, and by its answer", async () => {
    const [id = ""] = await store.addJobs(project, 1, { maxAttempts: 2 });
    const first = await store.start(nodeId, project, id);
    const failed = { ...failedWith({ dueAt: Date.now() - 1_000 }), responseStatus: 502, error: "first" };
    await settleAttempts(store.db, [settlementOf(first, failed)]);
    const second = await store.start(nodeId, project, id, { attempt: 2 });
    const over = { ...failedWith("over"), responseStatus: null, error: "second" };
    await settleAttempts(store.db, [settlementOf(second, over)]);
    const [busy = ""] = await addFailedJobs(store, nodeId, project, 1, { responseStatus: 503 });
    expect(await count("retry", { error_contains: "first" })).toEqual([]);
    expect(await count("retry", { error_contains: "second" })).toEqual([id]);
    expect(await count("retry", { response_status: 502 })).toEqual([]);
    expect(await count("retry", { response_status: 503 })).toEqual([busy]);
    expect(await count("retry", { response_status: 503, error_contains: "second" })).toEqual([]);
    expect(await count("retry", { response_status: 503, error_contains: "broke" })).toEqual([busy]);
  });

  test("are not found by a run that has left retention, although it is stored", async () => {
    const [id = ""] = await addFailedJobs(store, nodeId, project, 1);
    await store.query("UPDATE runs SET id = '00000000-0000-0000-0000-000000000001' WHERE job_id = $1", [
      idToUuid(id),
    ]);
    expect(await count("retry", { error_contains: "broke" })).toEqual([]);
    expect(await count("retry", { all: true })).toEqual([id]);
  });
});

test("whatever a filter holds that is accepted, it is counted", async () => {
  const [job = ""] = await addFailedJobs(store, nodeId, project, 1, { tags: ["NULL"], error: "x" });
  const { text: any, tags, ids: others, urls, dates } = HOSTILE_TEXTS;
  const texts = {
    ...{ tag: tags, schedule_id: others, target_host: urls, error_contains: any },
    ...{ created_after: dates, created_before: dates },
  };
  const found: string[] = [];
  let accepted = 0;
  for (const [member, values] of Object.entries(texts)) {
    for (const text of values) {
      const filter = { [member]: text } as BulkFilter;
      try {
        readSelection("retry", filter);
      } catch (error) {
        expect(error).toBeInstanceOf(ApiError);
        continue;
      }
      accepted++;
      const matched = await count("retry", filter);
      if (matched.length > 0) found.push(`${member} ${text}`);
      expect(matched.every((id) => id === job)).toBe(true);
    }
  }
  expect(accepted).toBeGreaterThan(30);
  expect(found).toEqual([
    "tag NULL",
    "created_after 0000-01-01T00:00:00Z",
    "created_after 0001-01-01T00:00:00+23:59",
    "created_before 9999-12-31T23:59:59-23:59",
    "created_before 2030-01-01T00:00:00.9999999999Z",
  ]);
});

describe.each(["cancel", "retry"] as const)("jobs to %s", (action) => {
  const add = (count: number, wish: object = {}) =>
    action === "cancel"
      ? store.addJobs(project, count, wish)
      : addFailedJobs(store, nodeId, project, count, wish);
  const schedule = ids.next(SCHEDULE_PREFIX, Date.now());
  const other = ids.next(SCHEDULE_PREFIX, Date.now());

  test("are found by region, tag and schedule, and by all of these", async () => {
    const wishes = ["us-east", "eu-central"].flatMap((region) =>
      [null, ["a"], ["a", "b"]].flatMap((tags) =>
        [undefined, schedule, other].map((scheduleId) => ({
          ...{ region, tags },
          ...(scheduleId && { scheduleId }),
        })),
      ),
    );
    const jobs: string[] = [];
    for (const wish of wishes) jobs.push(...(await add(1, wish)));
    const filters = [undefined, "us-east", "eu-central"].flatMap((region) =>
      [undefined, "a", "b", "c"].flatMap((tag) =>
        [undefined, schedule, other, "sch_nothing"].map((schedule_id) => ({ region, tag, schedule_id })),
      ),
    );
    for (const { region, tag, schedule_id } of filters) {
      const filter = JSON.parse(JSON.stringify({ region, tag, schedule_id })) as BulkFilter;
      const isEmpty = Object.keys(filter).length === 0;
      const expected = wishes.flatMap((wish, index) =>
        (region === undefined || wish.region === region) &&
        (tag === undefined || wish.tags?.includes(tag)) &&
        (schedule_id === undefined || wish.scheduleId === schedule_id)
          ? [jobs[index] ?? ""]
          : [],
      );
      expect({ filter, found: await count(action, isEmpty ? { all: true } : filter) }).toEqual({
        filter,
        found: expected,
      });
    }
  });

  test("are found by when they were created, both instants left out", async () => {
    const jobs = await add(3);
    const [first = 0, , last = 0] = jobs.map(idTimeMs);
    const iso = (at: number) => new Date(at).toISOString();
    const between = jobs.filter((id) => idTimeMs(id) > first && idTimeMs(id) < last);
    expect(await count(action, { created_after: iso(first), created_before: iso(last) })).toEqual(between);
    expect(await count(action, { created_after: iso(first - 1), created_before: iso(last + 1) })).toEqual(
      jobs,
    );
    expect(await count(action, { created_after: iso(last), created_before: iso(first) })).toEqual([]);
    expect(await count(action, { created_after: "0001-01-01T00:00:00Z" })).toEqual(jobs);
    expect(await count(action, { created_before: "9999-12-31T23:59:59+00:00" })).toEqual(jobs);
    expect(await count(action, { created_before: "0001-01-01T00:00:00Z" })).toEqual([]);
  });

  test("are found by the host of their target, in whatever spelling it was given", async () => {
    const targets = [
      "https://api.example.com/a",
      "https://API.Example.com:8443/b?api.other.com",
      "https://other.example.com/api.example.com",
      "https://api.example.com.evil.test/",
      "https://1.2.3.4/",
    ];
    const jobs: string[] = [];
    for (const targetUrl of targets) jobs.push(...(await add(1, { targetUrl })));
    expect(await count(action, { target_host: "api.example.com" })).toEqual(jobs.slice(0, 2));
    expect(await count(action, { target_host: "API.EXAMPLE.COM." })).toEqual(jobs.slice(0, 2));
    expect(await count(action, { target_host: "1.2.3.4" })).toEqual(jobs.slice(4));
    expect(await count(action, { target_host: "example.com" })).toEqual([]);
  });
});

test("jobs that are created after the operation never match, wherever the counting stands", async () => {
  const before = await store.addJobs(project, 3);
  const id = await askFor(store, project, "cancel", { all: true });
  const after = await store.addJobs(project, 3);
  await worker.countAll(id);
  expect(await membersOf(id)).toEqual(before);
  expect(after.length).toBe(3);
});

/** Adds queued jobs to a region, without the statements of creations. */
async function addMany(projectNo: ProjectNo, region: number, jobs: number): Promise<void> {
  await store.query(
    `WITH job AS (
       INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds)
       SELECT (lpad(to_hex(n * 4 + $2), 12, '0') || left(md5(n::text || $2::text), 20))::uuid, $1, 1, $2, 'https://target.example/', '{}', now(), 1, 1, 1
         FROM generate_series(1, $3::int) AS n RETURNING *)
     INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
     SELECT project_no, environment, region, id, now() + interval '1 day', 1 FROM job`,
    [projectNo, region, jobs],
  );
}

test("of more jobs than a page looks at, in regions of different sizes, each is counted once and in order", async () => {
  await addMany(project, 0, LOOKED_AT_MAX * 2 + 7);
  await addMany(project, 1, LOOKED_AT_MAX);
  await addMany(project, 3, 13);
  const rows = await store.query<{ job_id: string }>(
    "SELECT job_id FROM open_jobs WHERE project_no = $1 ORDER BY job_id",
    [project],
  );
  const found = await count("cancel", { all: true });
  expect(found).toEqual(rows.map((row) => uuidToId(JOB_PREFIX, row.job_id)));
});

test("the memory of a page does not grow with what matches, nor its look with what does not", async () => {
  await addMany(project, 0, LOOKED_AT_MAX * 4);
  const { statements, db } = recordStatements(store.db);
  const own = await startWorkerOf(store, { db, held: worker.held });
  const id = await askFor(store, project, "cancel", { target_host: "nothing.example" });
  let pages = 1;
  while (await own.count(id)) {
    pages++;
    expect(await bulkOf(store, project, id)).toMatchObject({ status: "counting", matched: null });
  }
  expect(pages).toBe(5);
  expect(await bulkOf(store, project, id)).toMatchObject({ matched: 0 });
  expect(statements.has("find_cancel_candidates_by_all")).toBe(true);
});

describe("a dry run", () => {
  test("counts, shows a sample, changes nothing, and is over", async () => {
    const jobs = await store.addJobs(project, 7);
    const id = await askFor(store, project, "cancel", { all: true }, { dryRun: true });
    await worker.countAll(id);
    expect(await bulkOf(store, project, id)).toMatchObject({
      ...{ status: "counted", matched: 7, sample: jobs.slice(0, 5), done: 0, startedAt: null },
      endedAt: expect.any(Number),
    });
    expect(await membersOf(id)).toEqual([]);
    expect(await worker.find(id)).toBeUndefined();
  });

  test("waits for nobody, and nobody for it", async () => {
    await store.addJobs(project, 2);
    const first = await askFor(store, project, "cancel", { all: true }, { dryRun: true });
    const running = await askFor(store, project, "cancel", { all: true });
    await worker.countAll(running);
    expect((await bulkOf(store, project, running)).status).toBe("running");
    const last = await askFor(store, project, "cancel", { all: true }, { dryRun: true });
    await worker.countAll(last);
    await worker.countAll(first);
    for (const id of [first, last]) expect((await bulkOf(store, project, id)).status).toBe("counted");
  });

  test("waits for no other that is counted, however many there are", async () => {
    const asked: string[] = [];
    for (let n = 0; n < 12; n++)
      asked.push(await askFor(store, project, "cancel", { all: true }, { dryRun: true }));
    for (const id of asked) expect((await worker.find(id))?.status).toBe("counting");
  });
});

describe("turns", () => {
  test("of an environment come in the order of the requests, one at a time", async () => {
    await store.addJobs(project, 1);
    const asked: string[] = [];
    for (let n = 0; n < 3; n++) asked.push(await askFor(store, project, "cancel", { all: true }));
    const [first = "", second = "", third = ""] = asked;
    const statuses = () => Promise.all(asked.map(async (id) => (await bulkOf(store, project, id)).status));
    // The operation that is counted first waits for those that were asked for before it.
    await worker.countAll(third);
    await worker.countAll(second);
    expect(await statuses()).toEqual(["counting", "waiting", "waiting"]);
    expect(await worker.start(second)).toBe(false);
    await worker.countAll(first);
    expect(await statuses()).toEqual(["running", "waiting", "waiting"]);
    expect(await worker.start(second)).toBe(false);
    await worker.finish(first);
    expect(await worker.start(third)).toBe(false);
    expect(await worker.start(second)).toBe(true);
    await abortBulk(store.db, { projectNo: project, environment: "production" }, second, keyCause(), null);
    expect(await worker.start(third)).toBe(true);
    expect(await statuses()).toEqual(["done", "aborted", "running"]);
  });

  test("of other environments and projects are their own", async () => {
    const other = await store.addProject();
    const running = [
      [project, "production"],
      [project, "development"],
      [other, "production"],
    ] as const;
    for (const [projectNo, environment] of running) {
      const id = await askFor(store, projectNo, "cancel", { all: true }, { environment });
      await worker.countAll(id);
      expect((await bulkOf(store, projectNo, id, environment)).status).toBe("running");
    }
  });
});

describe("two workers that count at once", () => {
  test("write each member once", async () => {
    await addMany(project, 0, LOOKED_AT_MAX * 6);
    const mate = await startWorkerOf(store, { held: worker.held });
    const id = await askFor(store, project, "cancel", { all: true });
    while ((await bulkOf(store, project, id)).status === "counting") {
      await Promise.all([worker.count(id), mate.count(id), mate.count(id)]);
    }
    expect((await bulkOf(store, project, id)).matched).toBe(LOOKED_AT_MAX * 6);
    expect(new Set(await membersOf(id)).size).toBe(LOOKED_AT_MAX * 6);
  });

  test("of which one has lost the shard: it writes nothing", async () => {
    await store.addJobs(project, 3);
    const late = worker;
    const id = await askFor(store, project, "cancel", { all: true });
    worker = await startWorkerOf(store);
    expect(await late.count(id)).toBe(false);
    expect(await bulkOf(store, project, id)).toMatchObject({ status: "counting", matched: null });
    await worker.countAll(id);
    expect(await late.judge(id)).toBeNull();
    expect((await bulkOf(store, project, id)).matched).toBe(3);
  });
});

test("an abort while it is counted ends the counting", async () => {
  await addMany(project, 0, LOOKED_AT_MAX * 3);
  const id = await askFor(store, project, "cancel", { all: true });
  expect(await worker.count(id)).toBe(true);
  await abortBulk(store.db, { projectNo: project, environment: "production" }, id, keyCause(), null);
  expect(await worker.count(id)).toBe(false);
  expect(await bulkOf(store, project, id)).toMatchObject({ status: "aborted", matched: null, done: 0 });
  expect((await membersOf(id)).length).toBe(LOOKED_AT_MAX);
});

test("a request waits for one that is being taken, so that no more are taken than an environment may have", async () => {
  for (let taken = 1; taken < OPEN_BULKS_MAX; taken++)
    await askFor(store, project, "cancel", { tag: "none" });
  const scope: Scope = { projectNo: project, environment: "production" };
  const key = { digest: randomBytes(32), requestHash: randomBytes(32), answer: Buffer.from("{}") };
  const ask = (taking: typeof key | null) => {
    const cause = keyCause();
    const id = retypeId(cause.requestId, BULK_PREFIX);
    const terms = { action: "cancel", filter: { tag: "none" }, perSecond: 1_000, dryRun: false } as const;
    return createBulk(store.db, scope, { id, ...terms, shard: 0 }, cause, taking);
  };
  const session = await store.session();
  await session.query("BEGIN");
  await session.query(
    "INSERT INTO idempotency_keys (created_at, project_no, environment, digest, request_hash, job_ids) VALUES (now(), $1, 1, $2, $3, '{}')",
    [project, key.digest, key.requestHash],
  );
  // The first has counted and waits for its key.
  const first = ask(key);
  await store.untilBlocked();
  const second = ask(null);
  const isWaiting = await Promise.race([store.untilBlocked(2).then(() => true), second.then(() => false)]);
  await session.query("ROLLBACK");
  expect([isWaiting, await first, await second]).toEqual([true, "created", "limit_exceeded"]);
});
