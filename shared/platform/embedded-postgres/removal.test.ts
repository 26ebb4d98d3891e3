import { afterAll, afterEach, expect, setDefaultTimeout, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startEmbeddedPostgres } from "./embedded-postgres.ts";
import { checkStartable, claimHome, DataDirInUse, ForeignData, homeOf } from "./home.ts";
import { type ClaimedData, claimData } from "./removal.ts";

setDefaultTimeout(300_000);

const root = mkdtempSync(join(tmpdir(), "removal-"));
let held: ClaimedData | null = null;
afterEach(() => held?.release());
afterAll(() => rmSync(root, { recursive: true, force: true }));

let count = 0;
/** A data directory with these entries in its folder of Postgres; a name that ends with a slash is a folder. */
function dataDirWith(...names: string[]): string {
  const dataDir = join(root, String(++count));
  mkdirSync(homeOf(dataDir), { recursive: true });
  for (const name of names) {
    const path = join(homeOf(dataDir), name);
    if (name.endsWith("/")) mkdirSync(path);
    else writeFileSync(path, "");
  }
  return dataDir;
}
const OWN = ["lock", "owner.pid", "password", "data/", "partial-x/"];

test("removes what an embedded Postgres has made, and lets the next one start anew", async () => {
  const dataDir = join(root, "real");
  expect(claimData(dataDir)).toBeNull();
  await (await startEmbeddedPostgres({ dataDir })).stop();
  writeFileSync(join(dataDir, "secrets-key"), "kept");
  await claimData(dataDir)?.remove();
  expect(readdirSync(dataDir)).toEqual(["secrets-key"]);
  await (await startEmbeddedPostgres({ dataDir })).stop();
});

test("removes nothing that another process uses, and keeps others out until it has removed it", async () => {
  const dataDir = dataDirWith(...OWN);
  const release = claimHome(homeOf(dataDir));
  expect(() => claimData(dataDir)).toThrow(DataDirInUse);
  release();
  held = claimData(dataDir);
  await expect(startEmbeddedPostgres({ dataDir })).rejects.toThrow(DataDirInUse);
  held?.release();
  expect(readdirSync(homeOf(dataDir)).sort()).toEqual(OWN.map((name) => name.replace("/", "")).sort());
});

test("takes a folder with anything else in it, or of another program, for somebody else's", async () => {
  const unmarked = [dataDirWith("data/"), dataDirWith("data/", "password", "owner.pid")];
  const mixed = [dataDirWith(...OWN, "thesis.txt"), dataDirWith(...OWN, "photos/")];
  const names = () => [...unmarked, ...mixed].map((dataDir) => readdirSync(homeOf(dataDir)).sort());
  const before = names();
  for (const dataDir of unmarked) {
    // A start leaves no mark there, either. By a mark the next start would take the folder for its own.
    expect(() => checkStartable(dataDir)).toThrow(ForeignData);
    await expect(startEmbeddedPostgres({ dataDir })).rejects.toThrow(ForeignData);
  }
  for (const dataDir of [...unmarked, ...mixed]) expect(() => claimData(dataDir)).toThrow(ForeignData);
  expect(names()).toEqual(before);

  // A link to a folder that would be accepted by itself.
  const elsewhere = dataDirWith(...OWN);
  const linked = join(root, "linked");
  mkdirSync(linked);
  symlinkSync(homeOf(elsewhere), homeOf(linked));
  expect(() => claimData(linked)).toThrow(ForeignData);
});

test("follows no link out of the folder", async () => {
  const dataDir = dataDirWith(...OWN);
  const outside = join(root, "outside");
  mkdirSync(outside);
  writeFileSync(join(outside, "photo"), "");
  symlinkSync(outside, join(homeOf(dataDir), "data", "pg_wal"));
  await claimData(dataDir)?.remove();
  expect(existsSync(homeOf(dataDir))).toBe(false);
  expect(readdirSync(outside)).toEqual(["photo"]);
});

test("ends what a killed process had begun to remove, and nothing with a similar name", async () => {
  for (const hasHome of [true, false]) {
    const dataDir = dataDirWith(...OWN);
    for (const name of ["postgres.removed-0123456789ab", "postgres.removed-by-me", "postgres.old"]) {
      mkdirSync(join(dataDir, name));
    }
    if (!hasHome) renameSync(homeOf(dataDir), join(root, `moved-${count}`));
    await claimData(dataDir)?.remove();
    expect(readdirSync(dataDir).sort()).toEqual(["postgres.old", "postgres.removed-by-me"]);
  }
});
