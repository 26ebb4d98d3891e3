import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { explainWait } from "../../shared/domain/explain.ts";
import { HOST_DOWN_ATTEMPTS_MIN, HOST_DOWN_SECONDS_MIN } from "../../shared/domain/host-state.ts";
import { idTimeMs } from "../../shared/domain/ids.ts";
import { countWaiting } from "../../shared/domain/insights/waiting.ts";
import { timelineOf } from "../../shared/domain/timeline.ts";
import { findInsights } from "../../shared/store/insights/insights.ts";
import { findWaiting } from "../../shared/store/insights/waiting.ts";
import { findExplained } from "../../shared/store/resources/explain.ts";
import { type ProjectRow, updateProject } from "../../shared/store/resources/projects.ts";
import { listTargetHosts, openHost, parkHost } from "../../shared/store/resources/target-hosts.ts";
import { keyCause } from "../support/cause.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { claimPort } from "../support/port.ts";
import { startTarget, type Target } from "../support/target.ts";
import { until, untilAllEnded } from "./support.ts";

setDefaultTimeout(600_000);

const PARKED = 5;
/** A slow machine may send so many probes before the host is back. */
const FAILED_PROBES_MAX = 3;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  for (let nodes = 0; nodes < 2; nodes++) await cell.startDelivery();
});
afterAll(() => cell.stop());

const HOST = "127.0.0.1";
const scopeOf = ({ no }: ProjectRow) => ({ projectNo: no, environment: "production" as const });
const repeated = <Wish>(count: number, wish: Wish) => Array.from({ length: count }, () => wish);
const hostOf = async (project: ProjectRow) => {
  const [host] = await listTargetHosts(cell.db, scopeOf(project), { after: null, limit: 2, state: null });
  return host ?? null;
};
const explained = async (project: ProjectRow, id: string) => {
  const found = await findExplained(cell.db, { ...scopeOf(project), sinceAt: 0 }, id);
  if (found === null) throw new Error(`${id} is missing`);
  return found;
};
const reasonsOf = async (project: ProjectRow) =>
  Object.fromEntries(countWaiting((await findWaiting(cell.db, scopeOf(project), null)).found).byReason);
const eventsOf = (target: Target) =>
  target.arrivals.map(
    ({ body }) => JSON.parse(body) as { type: string; data: { host: Record<string, unknown> } },
  );

test("a host that dies costs no attempt but probes until it is back, and then everything is delivered, the oldest first", async () => {
  const project = await cell.addProject();
  await updateProject(cell.db, project.no, { parksFailingHosts: true }, keyCause());
  // Events go to another host: a host that is down parks no deliveries, and their attempts do not count.
  const endpoint = startTarget();
  const url = endpoint.url.replace(HOST, "localhost");
  await cell.addEndpoint(project, { url, events: ["host.down", "host.up"] });
  // No other process gets the port while the host is dead.
  const mortal = startTarget(undefined, await claimPort());
  const targetUrl = mortal.url;
  const other = startTarget();
  const elsewhere = other.url.replace(HOST, "localhost");
  await mortal.stop();

  const first = await cell.addJobs(
    project,
    repeated(HOST_DOWN_ATTEMPTS_MIN - 1, { targetUrl, maxAttempts: 1 }),
  );
  expect(await untilAllEnded(cell, project, first)).toEqual(repeated(first.length, "failed"));
  expect(await hostOf(project)).toBeNull();
  // The failing attempts look as if they had begun as long ago as the rule asks for.
  await cell.db.run(
    "age",
    "UPDATE target_hosts SET failing_since = failing_since - $2 * interval '1 s' WHERE project_no = $1",
    [project.no, HOST_DOWN_SECONDS_MIN],
  );
  const [last = ""] = await cell.addJobs(project, [{ targetUrl, maxAttempts: 1 }]);
  const down = await until(async () => {
    const host = await hostOf(project);
    return host?.state === "down" && host;
  });
  expect(down).toMatchObject({ host: HOST, by: "breaker", parked: 0 });
  expect((await cell.job(project, last)).status).toBe("failed");

  const parked = await cell.addJobs(project, repeated(PARKED, { targetUrl, maxAttempts: 2 }));
  const [free = ""] = await cell.addJobs(project, [{ targetUrl: elsewhere }]);
  await other.until((arrivals) => arrivals.length === 1);
  expect(other.arrivals[0]?.jobId).toBe(free);
  const late = parked.at(-1) ?? "";
  const waiting = await until(async () => {
    const { owed, around, asOf } = await explained(project, late);
    const wait = owed && explainWait(owed, around, { now: asOf, createdAt: idTimeMs(late) });
    const ahead = wait?.ahead ?? PARKED;
    // A job that has been a probe goes behind the others.
    const isBehind = ahead < PARKED && ahead >= PARKED - 1 - FAILED_PROBES_MAX;
    return wait?.for === "host" && isBehind && wait;
  });
  expect(waiting).toMatchObject({ host: HOST, until: expect.any(Number) });
  expect(waiting.message).toStartWith(
    `${HOST} is down, and what is sent there is parked until a probe reaches it;`,
  );
  await until(async () => (await reasonsOf(project)).host === parked.length);
  // The first probe fails as well.
  const again = await until(async () => {
    const host = await hostOf(project);
    return host !== null && (host.nextProbeAt ?? 0) > (down.nextProbeAt ?? 0) && host;
  });
  expect(again.state).toBe("down");

  const alive = Bun.serve({
    hostname: HOST,
    port: mortal.port,
    fetch(request) {
      mortal.arrivals.push({
        at: Date.now(),
        jobId: request.headers.get("service-job-id") ?? "",
        attempt: Number(request.headers.get("service-attempt")),
      } as (typeof mortal.arrivals)[number]);
      return new Response("ok");
    },
  });
  expect(await untilAllEnded(cell, project, parked, 300_000)).toEqual(repeated(PARKED, "succeeded"));
  const runs = await Promise.all(parked.map((id) => cell.runs(project, id)));
  const failedCounts = runs.map((all) => all.filter(({ status }) => status === "failed").length);
  const probed = failedCounts.indexOf(0);
  expect(probed).toBeWithin(1, FAILED_PROBES_MAX + 1);
  // The failed probes were attempts of the oldest jobs, and the only attempts that were spent.
  expect(failedCounts).toEqual(parked.map((_, n) => (n < probed ? 1 : 0)));
  expect(mortal.arrivals.map(({ jobId, attempt }) => `${parked.indexOf(jobId)} ${attempt}`).sort()).toEqual(
    failedCounts.map((count, n) => `${n} ${count + 1}`),
  );
  const rest = parked.slice(probed);
  expect(mortal.arrivals.map(({ jobId }) => jobId).filter((id) => rest.includes(id))).toEqual(rest);
  const starts = runs.flatMap((all) => all.at(-1)?.startedAt ?? []);
  // The ramp starts one job in each second at first.
  expect(Math.max(...starts) - Math.min(...starts)).toBeGreaterThan(1_000);
  await until(async () => (await hostOf(project)) === null);

  const over = await explained(project, late);
  const timeline = timelineOf({ ...over, createdAt: idTimeMs(late) }, over.asOf);
  expect(timeline.find(({ event }) => event === "started")).toMatchObject({ heldFor: "host" });
  await until(async () => {
    const { totals } = await findInsights(cell.db, scopeOf(project), { period: "1h", region: null });
    return (totals.waitedFor.get("host") ?? 0) >= parked.length - 1;
  });
  await endpoint.until((arrivals) => arrivals.length === 2);
  const told = eventsOf(endpoint).toSorted((one, next) => one.type.localeCompare(next.type));
  expect(told.map(({ type, data }) => [type, data.host.host, data.host.state])).toEqual([
    ["host.down", HOST, "down"],
    ["host.up", HOST, "opening"],
  ]);
  await alive.stop(true);
  for (const target of [endpoint, other]) await target.stop();
});

test("a host that is parked by hand is sent nothing until it is opened by hand, and other projects go on", async () => {
  const [project, stranger] = [await cell.addProject(), await cell.addProject()];
  const target = startTarget();
  const wish = { targetUrl: target.url };
  const done = await parkHost(cell.db, scopeOf(project), HOST, keyCause(), null, 0);
  expect(done).toMatchObject({ kind: "parked", row: { state: "down", by: "hand", nextProbeAt: null } });
  const parked = await cell.addJobs(project, repeated(3, wish));
  const [free = ""] = await cell.addJobs(stranger, [wish]);
  await until(async () => (await hostOf(project))?.parked === parked.length);
  await target.until((arrivals) => arrivals.length === 1);
  expect(target.arrivals[0]?.jobId).toBe(free);
  expect(await reasonsOf(project)).toEqual({ host: parked.length });
  await openHost(cell.db, scopeOf(project), HOST, keyCause(), null, 0);
  expect(await untilAllEnded(cell, project, parked)).toEqual(repeated(parked.length, "succeeded"));
  expect(target.arrivals.slice(1).map(({ jobId }) => jobId)).toEqual(parked);
  await until(async () => (await hostOf(project)) === null);
  await target.stop();
});
