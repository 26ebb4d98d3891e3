import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { REGIONS } from "../../shared/domain/scope.ts";
import { until } from "../flow/support.ts";
import { askAdmin } from "../support/admin-program.ts";
import { type ArchivingPostgres, type Backup, restorePostgres } from "../support/archiving-postgres.ts";
import { expectNothingDoubled } from "../support/load.ts";
import { listUnmatchedEvents } from "../support/unmatched-events.ts";
import { type RestorableCell, readKnown, startRestorableCell } from "./restorable-cell.ts";

setDefaultTimeout(600_000);

const BETWEEN = 40;

let cell: RestorableCell;
let backup: Backup;
let current: ArchivingPostgres;

beforeAll(async () => {
  cell = await startRestorableCell();
  current = cell.postgres;
  await arrived();
  backup = await cell.postgres.backUp();
  await arrived();
  await cell.postgres.archive();
});
afterAll(async () => {
  await cell.killServices();
  await current.kill();
  await cell.stop();
});

const arrived = () => {
  const enough = cell.target.arrivals.length + BETWEEN;
  return cell.target.until((arrivals) => arrivals.length >= enough, 60_000);
};
const timeline = async () => {
  const text = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline";
  return (await until(() => cell.db.run<{ timeline: string }>("timeline", text, [])))[0]?.timeline;
};
const heldRegions = async () =>
  (await askAdmin<{ data: { name: string }[] }>(cell.url, "hold", "list")).data.map(({ name }) => name);

const countEvents = async () =>
  (await cell.db.run<{ count: number }>("events", "SELECT count(*)::int AS count FROM events", []))[0]?.count;

/** Replaces the Postgres of the running services by one that is restored from `source`. */
async function replace(source: Backup, name: string): Promise<void> {
  await current.kill();
  current = await restorePostgres(join(cell.folder, name), source);
  cell.place.port = current.port;
}

test("a killed Postgres, and a failover to one with every commit, hold nothing and lose no event, also for a node that starts meanwhile", async () => {
  expect(await timeline()).toBe("00000001");
  const { worker, delivery } = cell.services;
  const restarted = worker.end("SIGKILL").then(() => worker.startAgain());
  await replace(cell.postgres.disk, "standby");
  await arrived();
  expect(await timeline()).toBe("00000002");
  await restarted;
  expect(await heldRegions()).toEqual([]);
  expect(worker.output + delivery.output).not.toContain("this database was restored");
  expectNothingDoubled(cell.target);
  expect(await countEvents()).toBeGreaterThan(BETWEEN);
  expect(await listUnmatchedEvents(cell.db)).toEqual([]);
});

test("a backup that is restored under running nodes makes them hold the cell and start anew", async () => {
  await replace(backup, "in-place");
  const { worker, delivery } = cell.services;
  await until(() => [worker, delivery].every(({ output }) => output.includes("this database was restored")));
  expect([await worker.end("SIGTERM"), await delivery.end("SIGTERM")]).toEqual([1, 1]);
  expect(await heldRegions()).toEqual([...REGIONS]);
  const { started } = await readKnown(cell.db);
  const arrivedCount = cell.target.arrivals.length;
  await Promise.all([worker.startAgain(), delivery.startAgain()]);
  expect(await heldRegions()).toEqual([...REGIONS]);
  expect(cell.target.arrivals.length).toBe(arrivedCount);
  await askAdmin(cell.url, "resume");
  cell.release();
  await arrived();
  const after = cell.target.arrivals.slice(arrivedCount);
  expect(after.filter(({ jobId, attempt }) => started.has(`${jobId} ${attempt}`))).toEqual([]);
  expect(await listUnmatchedEvents(cell.db)).toEqual([]);
});
