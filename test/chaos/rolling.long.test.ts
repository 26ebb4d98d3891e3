import { afterEach, expect, setDefaultTimeout, test } from "bun:test";
import { CHECKOUT } from "../support/service-process.ts";
import { type RollingCell, startRollingCell } from "./rolling-cell.ts";
import { endAndJudge, NOTHING } from "./rolling-findings.ts";
import { checkOutVersion } from "./rolling-version.ts";

setDefaultTimeout(900_000);

/**
 * Earlier versions with older schemas, so that the migration changes a schema on which a version is at work: the newest
 * one before migration 0017 and the newest one before 0030. Workers of the first also hand over one shard a second,
 * while those of today offer their shards.
 */
const VERSIONS_BEFORE = [
  "4dba7fbb23eb8f6ab4c3e07a137d3c262b1ed882",
  "a684205b2b2f3e27c2c6c781d9070b6aaa0c1b2a",
];
const WORKERS = 3;
/** The promise for a project whose shard moves from or to a worker of the first version (deploy/README.md). */
const LATE_MS_MAX = 3_000;

let cell: RollingCell | undefined;
afterEach(async () => {
  await cell?.stop();
  cell = undefined;
});

const title =
  "a release and its rollback to %s under load, migrations included: no request fails, nothing is cut, doubled, missed or late";
test.each(VERSIONS_BEFORE)(title, async (version) => {
  const before = checkOutVersion(version);
  cell = await startRollingCell(before, WORKERS);
  const names = [...cell.services.keys()];
  // The order of deploy/README.md, "A new release".
  const order = ["delivery", "worker", "gateway"].flatMap((kind) =>
    names.filter((name) => name.startsWith(kind)),
  );
  async function replaceAll(inOrder: string[], checkout: string): Promise<void> {
    for (const name of inOrder) {
      await cell?.replace(name, checkout);
      // Both versions own shards at once, and hand them to each other.
      if (name.startsWith("worker")) await cell?.untilOwner(name);
    }
  }
  const schemaBefore = await countMigrations(cell);
  await cell.migrate(CHECKOUT);
  // If both numbers are the same, name an earlier version.
  expect(await countMigrations(cell)).toBeGreaterThan(schemaBefore);
  await replaceAll(order, CHECKOUT);
  await replaceAll(order.toReversed(), before);
  expect(await endAndJudge(cell, LATE_MS_MAX)).toEqual(NOTHING);
});

async function countMigrations({ db }: RollingCell): Promise<number> {
  const text = "SELECT count(*)::int AS count FROM drizzle.__drizzle_migrations";
  return (await db.run<{ count: number }>("rolling_migrations", text, []))[0]?.count ?? 0;
}
