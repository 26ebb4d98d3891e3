import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { UsageQuery, UsageReport } from "../../../shared/client/index.ts";
import { passNearEnd } from "../../support/boundary.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

await passNearEnd(86_400_000);
const MONTH = new Date().toISOString().slice(0, 7);
const TODAY = new Date().toISOString().slice(0, 10);
const report = (key: string, query?: UsageQuery) => clientOf(gateway, key).project.usage(query);
const setRuns = (own: TestProject, day: string, region: number, runs: number) =>
  gateway.query("INSERT INTO usage_days VALUES ($1, $2, $3, $4)", [own.no, day, region, runs]);
const daysWithRuns = ({ by_day }: UsageReport) => by_day.filter(({ runs }) => runs > 0);

describe("GET /v2/project/usage", () => {
  test("counts the runs that have started today, over both environments", async () => {
    const own = await gateway.addProject();
    const job = await gateway.createJob(own);
    await gateway.attempt(own, job, 1, { status: "failed", leaves: "queued" });
    await gateway.claim(own, job, 2);
    await gateway.claim(own, await gateway.createJob(own, { region: "us-west" }), 1);
    const all = await report(own.production);
    expect(all).toMatchObject({ period: MONTH, runs_total: 3, runs_included: 250_000, overage_runs: 0 });
    expect(daysWithRuns(all)).toEqual([{ date: TODAY, runs: 3 }]);
    expect(await report(own.development)).toEqual(all);
  });

  test("lists every day of the current month up to today, zeros included", async () => {
    const { by_day } = await report(project.production);
    expect(by_day.map(({ date }) => date)).toEqual(
      Array.from({ length: Number(TODAY.slice(8)) }, (_, n) => `${MONTH}-${String(n + 1).padStart(2, "0")}`),
    );
  });

  test("of an earlier month lists that month, and nothing of its neighbours", async () => {
    const own = await gateway.addProject();
    for (const [day, runs] of [
      ["2024-01-31", 1],
      ["2024-02-01", 2],
      ["2024-02-29", 3],
      ["2024-03-01", 4],
    ] as const) {
      await setRuns(own, day, 0, runs);
    }
    const february = await report(own.production, { period: "2024-02" });
    expect(february).toMatchObject({ period: "2024-02", runs_total: 5 });
    expect(february.by_day).toHaveLength(29);
    expect(daysWithRuns(february)).toEqual([
      { date: "2024-02-01", runs: 2 },
      { date: "2024-02-29", runs: 3 },
    ]);
  });

  test("restricts the days by region, and not the total", async () => {
    const own = await gateway.addProject();
    await setRuns(own, "2024-02-01", 0, 2);
    await setRuns(own, "2024-02-01", 1, 5);
    await setRuns(own, "2024-02-02", 2, 7);
    const west = await report(own.production, { period: "2024-02", region: "us-west" });
    expect(west.runs_total).toBe(14);
    expect(daysWithRuns(west)).toEqual([{ date: "2024-02-01", runs: 5 }]);
    const nowhere = await report(own.production, { period: "2024-02", region: "ap-southeast" });
    expect(daysWithRuns(nowhere)).toEqual([]);
  });

  test("answers the runs beyond those included, on paid plans alone", async () => {
    const [pro, hobby] = [await gateway.addProject("pro"), await gateway.addProject("hobby")];
    for (const own of [pro, hobby]) await setRuns(own, "2024-02-01", 0, 3_000_000_000);
    const usage = (own: TestProject) => report(own.production, { period: "2024-02" });
    expect(await usage(pro)).toMatchObject({ runs_total: 3_000_000_000, overage_runs: 2_999_750_000 });
    expect(await usage(hobby)).toMatchObject({ runs_included: 10_000, overage_runs: 0 });
  });

  test("of a month before the project existed is all zeros", async () => {
    // Postgres cannot express 0000-01.
    for (const period of ["1999-12", "0001-01", "0000-01"]) {
      const old = await report(project.production, { period });
      expect(old).toMatchObject({ period, runs_total: 0, overage_runs: 0 });
      expect(old.by_day).toHaveLength(31);
    }
  });

  test.each([
    ["period=2999-01", "period"],
    ["period=2024-13", "period"],
    ["period=2024-1", "period"],
    ["period=", "period"],
    ["region=mars", "region"],
    ["month=2024-01", "month"],
    ["period=2024-01&period=2024-01", "period"],
  ])("refuses ?%s", async (query, param) => {
    const answer = await gateway.call("GET", `/v2/project/usage?${query}`, { key: project.production });
    readRefusal(answer, "invalid_request", param);
  });

  test("is open to a key that reads, and closed to one that may only work with jobs", async () => {
    const { key: readKey } = await gateway.addKey(project, { scope: "read" });
    expect((await report(readKey)).period).toBe(MONTH);
    const { key: jobsKey } = await gateway.addKey(project, { scope: "jobs" });
    await refusalOf(report(jobsKey), "insufficient_scope");
  });
});
