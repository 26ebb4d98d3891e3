import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { InsightQuery, Insights } from "../../../shared/client/index.ts";
import { Insights as InsightsSchema } from "../../../shared/contract/insights.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import { regionCode } from "../../../shared/store/database/codes.ts";
import { rollUp } from "../../../shared/store/insights/test-support.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import {
  readAs,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

const PART = 2_000;

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  // Runs that ended in the minute of the migration count as well.
  await gateway.query("UPDATE insight_progress SET counted_since = '2020-01-01'");
  await gateway.query(
    `WITH owner AS (INSERT INTO nodes (kind, name, regions, process, seen_at)
                    SELECT kind, kind, $1::smallint[], 'test', 'infinity' FROM unnest('{worker,delivery}'::text[]) AS kind RETURNING id, kind)
     INSERT INTO shards (region, shard, owner, lease_until)
     SELECT region, shard, owner.id, 'infinity' FROM owner, unnest($1::smallint[]) AS region, generate_series(0, 255) AS shard
      WHERE owner.kind = 'worker'
         ON CONFLICT (region, shard) DO UPDATE SET owner = excluded.owner, lease_until = excluded.lease_until`,
    [`{${REGIONS.map(regionCode).join(",")}}`],
  );
});
afterAll(() => gateway.stop());

const ask = (query = "", key = project.production) =>
  gateway.call("GET", `/v2/project/insights${query}`, { key });
const insights = (own: TestProject, query?: InsightQuery): Promise<Insights> =>
  clientOf(gateway, own.production).project.insights(query);
const hour = () => new Date(Date.now() + 3_600_000).toISOString();
const NOTHING = { p50: null, p90: null, p99: null, max: null };
const NO_FIGURES = {
  ...{ created: 0, succeeded: 0, failed: 0, timed_out: 0 },
  ...{ late_ms: NOTHING, late_all_ms: NOTHING, duration_ms: NOTHING, waited_for: {} },
};

describe("GET /v2/project/insights", () => {
  test("of an environment in which nothing was done is all zeros, in 144 buckets of the last day", async () => {
    const own = await gateway.addProject();
    const told = readAs(InsightsSchema, await ask("", own.production));
    const { buckets, ...rest } = told;
    expect(rest).toEqual({
      ...{ period: "24h", from: told.from, to: told.to, lateness_target: { p99_ms: 1_000 } },
      ...{ totals: NO_FIGURES, hosts: [] },
      waiting: { due: 0, by_reason: {}, later: 0, estimated: false },
    });
    expect(buckets).toHaveLength(144);
    for (const bucket of buckets) expect(bucket).toEqual({ at: bucket.at, ...NO_FIGURES });
  });

  test.each([
    ["1h", 60, 60_000],
    ["24h", 144, 600_000],
    ["7d", 168, 3_600_000],
    ["30d", 120, 21_600_000],
    ["90d", 90, 86_400_000],
  ] as const)(
    "of %s has %d buckets that begin at full ones, the last of them in progress",
    async (period, count, widthMs) => {
      const { from, to, buckets, ...told } = readAs(InsightsSchema, await ask(`?period=${period}`));
      expect(told.period).toBe(period);
      const starts = buckets.map(({ at }) => Date.parse(at));
      expect(starts).toHaveLength(count);
      const first = Date.parse(from);
      expect(first % widthMs).toBe(0);
      expect(starts).toEqual(Array.from({ length: count }, (_, n) => first + n * widthMs));
      expect(Date.parse(to)).toBeWithin(starts.at(-1) ?? 0, (starts.at(-1) ?? 0) + widthMs);
      expect(Math.abs(Date.parse(to) - Date.now())).toBeLessThan(60_000);
    },
  );

  test("counts jobs and runs of the key's environment, in all regions or in one", async () => {
    const own = await gateway.addProject();
    const succeeded = await gateway.createJob(own);
    await gateway.attempt(own, succeeded, 1, { status: "succeeded", leaves: "succeeded" });
    const failing = await gateway.createJob(own, {
      region: "eu-central",
      target_url: "https://Bad.Example:8443/x",
    });
    await gateway.attempt(own, failing, 1, { status: "failed", leaves: "queued" });
    await gateway.attempt(own, failing, 2, { status: "timed_out", leaves: "failed" });
    await rollUp(gateway.db);
    for (const period of ["1h", "24h", "7d", "30d", "90d"] as const) {
      const { totals, buckets, hosts } = await insights(own, { period });
      expect(totals).toMatchObject({ created: 2, succeeded: 1, failed: 1, timed_out: 1 });
      expect(totals.duration_ms).toEqual({ p50: 12, p90: 12, p99: 12, max: 12 });
      const sum = (name: "created" | "succeeded" | "failed" | "timed_out") =>
        buckets.reduce((total, bucket) => total + bucket[name], 0);
      expect([sum("created"), sum("succeeded"), sum("failed"), sum("timed_out")]).toEqual([2, 1, 1, 1]);
      expect(hosts).toEqual([
        { host: "bad.example", runs: 2, failed: 2, duration_p99_ms: 12, commonest_error: "status_500" },
      ]);
    }
    expect((await insights(own, { region: "us-east" })).totals).toMatchObject({
      created: 1,
      succeeded: 1,
      failed: 0,
    });
    const { totals, hosts } = await insights(own, { region: "us-west" });
    expect([totals, hosts]).toEqual([NO_FIGURES, []]);
    expect((await clientOf(gateway, own.development).project.insights()).totals).toEqual(NO_FIGURES);
    expect((await insights(project)).totals.created).toBe(0);
  });

  test("tells what is due now, why it waits, and what is due later", async () => {
    const own = await gateway.addProject();
    for (const region of ["us-east", "us-east", "eu-central"] as const)
      await gateway.createJob(own, { region });
    await gateway.createJob(own, { run_at: hour() });
    const waiting = async (query?: InsightQuery) => (await insights(own, query)).waiting;
    expect(await waiting()).toEqual({ due: 3, by_reason: { turn: 3 }, later: 1, estimated: false });
    expect(await waiting({ region: "eu-central" })).toEqual({
      due: 1,
      by_reason: { turn: 1 },
      later: 0,
      estimated: false,
    });
    await gateway.query(
      "UPDATE open_jobs SET parked_host = 'a', parked_due_at = due_at, due_at = NULL WHERE project_no = $1 AND region = 2",
      [own.no],
    );
    expect(await waiting()).toMatchObject({ due: 3, by_reason: { turn: 2, host: 1 } });
    await gateway.query("UPDATE flows SET concurrency = 0 WHERE project_no = $1", [own.no]);
    expect(await waiting()).toMatchObject({ due: 3, by_reason: { concurrency: 2, host: 1 } });
    await gateway.query("UPDATE flows SET month_runs_max = 0 WHERE project_no = $1", [own.no]);
    expect(await waiting()).toMatchObject({ due: 3, by_reason: { quota: 3 } });
    await gateway.query("UPDATE flows SET held = true WHERE project_no = $1", [own.no]);
    expect(await waiting()).toEqual({ due: 3, by_reason: { hold: 3 }, later: 1, estimated: false });
    await gateway.query("UPDATE flows SET held = false, month_runs_max = NULL WHERE project_no = $1", [
      own.no,
    ]);
    await gateway.query("INSERT INTO held_regions (region) VALUES (0)");
    expect(await waiting()).toMatchObject({ due: 3, by_reason: { hold: 2, host: 1 } });
    await gateway.query("DELETE FROM held_regions");
  });

  test("counts what waits up to 10,000, and says that more than that is an estimate", async () => {
    const own = await gateway.addProject();
    await gateway.createJob(own);
    // A statement of the service's role ends after 5 s, so a slow machine adds the jobs in parts.
    const add = async (count: number, dueAt: string) => {
      for (let left = count; left > 0; left -= PART)
        await gateway.query(
          `INSERT INTO open_jobs (project_no, environment, region, job_id, attempts_allowed, due_at)
           SELECT $1, 1, 0, gen_random_uuid(), 5, ${dueAt} FROM generate_series(1, $2)`,
          [own.no, Math.min(left, PART)],
        );
    };
    await add(9_999, "now() - interval '1 min'");
    expect((await insights(own)).waiting).toEqual({
      due: 10_000,
      by_reason: { turn: 10_000 },
      later: 0,
      estimated: false,
    });
    await add(20_000, "now() + interval '1 day'");
    await gateway.query("ANALYZE open_jobs");
    const { due, later, estimated } = (await insights(own)).waiting;
    expect([due, estimated]).toEqual([10_000, true]);
    expect(later).toBeWithin(15_000, 25_000);
  });

  test.each([
    ["period=2h", "period"],
    ["period=", "period"],
    ["period=24H", "period"],
    ["region=mars", "region"],
    ["period=1h&period=1h", "period"],
    ["from=2026-11-01T00:00:00Z", "from"],
    ["host=a", "host"],
  ])("refuses ?%s", async (query, param) => {
    readRefusal(await ask(`?${query}`), "invalid_request", param);
  });

  test("is open to a key that reads, and closed to one that may only work with jobs", async () => {
    const { key: readKey } = await gateway.addKey(project, { scope: "read" });
    expect((await clientOf(gateway, readKey).project.insights({ period: "1h" })).period).toBe("1h");
    const { key: jobsKey } = await gateway.addKey(project, { scope: "jobs" });
    await refusalOf(clientOf(gateway, jobsKey).project.insights(), "insufficient_scope");
  });
});
