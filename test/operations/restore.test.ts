import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { verifySignature } from "../../shared/client/signature.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { until } from "../flow/support.ts";
import { askAdmin, runAdmin } from "../support/admin-program.ts";
import { type ArchivingPostgres, type Backup, restorePostgres } from "../support/archiving-postgres.ts";
import {
  nameOf,
  type RestorableCell,
  readKnown,
  readOverdueSchedules,
  startRestorableCell,
} from "./restorable-cell.ts";

setDefaultTimeout(600_000);

/** The number of arrivals at the target between two steps. */
const BETWEEN = 40;
/** No attempt may arrive for so long while the cell is held; a sweep comes each second. */
const HELD_MS = 2_000;
const ENDED_MS = 180_000;
/** The number of schedules that are overdue before the services start; one more becomes overdue every 5 s. */
const MISSED = 2;

let cell: RestorableCell;
let backup: Backup;
/** An instant after the base backup, as Postgres writes it. */
let earlier = "";
let restored: ArchivingPostgres;
/** The attempts that had arrived at the target when the cell went down. */
let before: Set<string>;

beforeAll(async () => {
  cell = await startRestorableCell();
  await arrived(BETWEEN);
  backup = await cell.postgres.backUp();
  await arrived(BETWEEN);
  earlier = (await cell.db.run<{ now: string }>("now", "SELECT now()::text AS now", []))[0]?.now ?? "";
  await arrived(BETWEEN);
  await cell.postgres.archive();
  await arrived(BETWEEN);
  await Promise.all([cell.killServices(), cell.postgres.kill()]);
  await cell.stopLoad();
  before = new Set(cell.target.arrivals.map(nameOf));
  cell.release();
});
afterEach(() => Promise.all([cell.killServices(), restored.kill()]));
afterAll(() => cell.stop());

const arrived = (count: number) => {
  const enough = cell.target.arrivals.length + count;
  return cell.target.until((arrivals) => arrivals.length >= enough, ENDED_MS);
};

describe("a backup that is restored into an empty Postgres, with an empty NATS, starts held and loses nothing that it knows", () => {
  test("up to an instant, under the same node names", () =>
    expectRestored({ until: () => earlier, generation: 0 }));

  test("up to the end of the archive, under other names, where nobody can prove the old nodes dead", () =>
    expectRestored({ until: () => undefined, generation: 1 }));
});

async function namesOfSilent(url: string): Promise<string[]> {
  const nodes = await askAdmin<{ data: { name: string; dead: boolean; silent_ms: number }[] }>(
    url,
    "node",
    "list",
  );
  const silent = nodes.data.filter(({ dead, silent_ms }) => !dead && silent_ms > 5_000);
  return silent.map(({ name }) => name).sort();
}

/** The nodes that were killed with the first cell. */
const GONE = ["delivery-0", "worker-0"];

async function expectRestored(wish: { until: () => string | undefined; generation: number }): Promise<void> {
  const { db, target, endpoint, url } = cell;
  const [worker, delivery] = [`worker-${wish.generation}`, `delivery-${wish.generation}`];
  const at = wish.until();
  restored = await restorePostgres(join(cell.folder, `restored-${wish.generation}`), backup, {
    ...(at !== undefined && { until: at }),
  });
  cell.place.port = restored.port;
  const known = await until(() => readKnown(db));
  const missed = await until(async () => {
    const overdue = await readOverdueSchedules(db);
    return overdue.length >= MISSED && overdue;
  }, ENDED_MS);
  const [arrivalsBefore, toldBefore] = [target.arrivals.length, endpoint.arrivals.length];
  // A process's successor in another pod cannot see the process.
  const isElsewhere = wish.generation > 0;
  if (isElsewhere) await db.run("elsewhere", "UPDATE nodes SET process = 'in another pod'", []);
  expect(known.inFlight.size).toBeGreaterThanOrEqual(5);

  await cell.startServices({ worker, delivery });
  expect(await whyHeld()).toEqual(REGIONS.map((name) => ({ kind: "region", name, reason: "restored" })));
  const { services } = cell;
  await until(() =>
    `${services.worker.output}${services.delivery.output}`.includes("this database was restored"),
  );
  const posted = await cell.ask<{ id: string }>("POST", "/v2/jobs", {
    target_url: target.url,
    payload: { kind: "quick" },
  });
  const firingCount = await count("firings");
  const metrics = `http://127.0.0.1:${services.worker.opsPort}/metrics`;
  const isShown = async () =>
    (await (await fetch(metrics)).text()).includes('jobwheel_holds{kind="region"} 4');
  // A worker looks at the cell every 15 s.
  await until(isShown, ENDED_MS);
  const heldSince = performance.now();
  await until(() => performance.now() > heldSince + HELD_MS);
  // Schedules fire all the while, and their jobs wait with the rest.
  await until(async () => (await count("firings")) > firingCount);
  expect(await count("open_jobs WHERE due_at <= now()")).toBeGreaterThan(5);
  expect([target.arrivals.length, endpoint.arrivals.length]).toEqual([arrivalsBefore, toldBefore]);

  expect((await runAdmin(url, "resume")).code).toBe(0);
  expect(await whyHeld()).toEqual([]);
  if (isElsewhere) {
    // The cell cannot know that the nodes of these attempts are gone until the operator declares them dead.
    const isLeft = async () => (await readKnown(db)).inFlight.symmetricDifference(known.inFlight).size === 0;
    await until(
      async () => (await isLeft()) && (await count("open_jobs WHERE due_at <= now()")) === 0,
      ENDED_MS,
    );
    // A living node is silent for a moment if the machine stands still.
    await until(async () => String(await namesOfSilent(url)) === String(GONE), ENDED_MS);
    for (const name of GONE) await askAdmin(url, "node", "dead", name);
  }
  await until(async () => (await count("open_jobs")) + (await count("open_deliveries")) === 0, ENDED_MS);

  // Every job that the database knows succeeds, and so does every job accepted meanwhile. Schedules go on to make jobs.
  await untilNone(
    "jobs j WHERE NOT EXISTS (SELECT FROM ended_jobs e WHERE e.job_id = j.id AND e.status = 0)",
  );
  expect(await cell.ask("GET", `/v2/jobs/${posted.id}`)).toMatchObject({ status: "succeeded" });
  const after = target.arrivals.slice(arrivalsBefore).map(nameOf);
  expect(after.filter((name, index) => after.indexOf(name) !== index)).toEqual([]);
  expect(after.filter((name) => known.started.has(name))).toEqual([]);
  // Exactly the attempts that the database had forgotten were repeated.
  const forgotten = [...before].filter(
    (name) => known.jobs.has(name.split(" ")[0] ?? "") && !known.started.has(name),
  );
  expect(forgotten.length).toBeGreaterThan(0);
  expect(after.filter((name) => before.has(name)).sort()).toEqual(forgotten.sort());

  // The latest missed firing is made, so only older ones count as missed.
  await until(async () => {
    const firings = await Promise.all(
      missed.map((id) =>
        cell.ask<{ data: { status: string }[] }>("GET", `/v2/schedules/${id}/firings?limit=1`),
      ),
    );
    return firings.every(({ data }) => data[0]?.status === "fired");
  }, ENDED_MS);
  expect(
    await count(
      "(SELECT FROM jobs WHERE schedule_id IS NOT NULL GROUP BY schedule_id, run_at HAVING count(*) > 1) d",
    ),
  ).toBe(0);

  await untilNone(
    "events e WHERE NOT EXISTS (SELECT FROM ended_deliveries d WHERE d.event_id = e.id AND d.status = 0)",
  );
  const told = endpoint.arrivals.slice(toldBefore);
  expect(told.length).toBeGreaterThan(20);
  for (const request of told) await verifySignature(request, { secrets: endpoint.secret });
  const inUse = "development_jobs + production_jobs + development_webhooks + production_webhooks";
  await untilNone(`flows WHERE ${inUse} <> 0`);
}

const untilNone = (from: string) => until(async () => (await count(from)) === 0, ENDED_MS);

async function whyHeld(): Promise<{ kind: string; name: string; reason: string }[]> {
  const { data } = await askAdmin<{ data: { kind: string; name: string; reason: string }[] }>(
    cell.url,
    "hold",
    "list",
  );
  return data.map(({ kind, name, reason }) => ({ kind, name, reason }));
}

async function count(from: string): Promise<number> {
  const text = `SELECT count(*)::int AS count FROM ${from}`;
  return (await cell.db.run<{ count: number }>(`count ${Bun.hash(from)}`, text, []))[0]?.count ?? -1;
}
