import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { startEmbeddedPostgres } from "../../shared/platform/embedded-postgres/embedded-postgres.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { askAdmin } from "../support/admin-program.ts";
import { openPatientDatabase } from "../support/database.ts";
import { createLoad, type Load, untilTerminal } from "../support/load.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { findPostgresClient } from "../support/postgres-client.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget } from "../support/target.ts";

setDefaultTimeout(300_000);

const JOBS = 20;

const folder = mkdtempSync(join(tmpdir(), "dump-"));
const dump = join(folder, "cell.dump");
const target = startTarget();
const runPostgres = findPostgresClient();
const secretsKey = randomBytes(32);
let origin: TestDatabase;
let nats: NatsServer;
let ended: Load;

beforeAll(async () => {
  origin = await createTestDatabase("dumped");
  await migrate(origin.url);
  nats = await startNatsServer();
  const db = openPatientDatabase(origin.url, 2);
  const terms = { name: "dumped", plan: "scale", defaultRegion: "us-east" } as const;
  const key = (await createProjectWithKeys(db, createSeal(secretsKey), terms)).keys.production;
  await db.close();
  const [gateway, ...nodes] = await startServices(origin.url, "gateway", "worker", "delivery");
  const base = `http://127.0.0.1:${gateway?.port}`;
  const post = async (load: Load) => {
    for (let count = 0; count < JOBS; count++) await load.post({ target_url: target.url });
  };
  ended = createLoad(() => base, key);
  await post(ended);
  await untilTerminal(base, key, ended, 60_000);
  for (const node of nodes) await node.end("SIGTERM");
  await post(createLoad(() => base, key));
  runPostgres("pg_dump", "--format=custom", `--file=${dump}`, origin.url);
  await gateway?.end("SIGKILL");
});
afterAll(async () => {
  await nats.stop();
  await target.stop();
  await origin.drop();
  rmSync(folder, { recursive: true });
});

const startServices = (
  url: string,
  ...kinds: ("gateway" | "worker" | "delivery")[]
): Promise<ServiceProcess[]> => {
  const environment = {
    DATABASE_URL: url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    LEASE_TTL_MS: "2000",
    SHARDS_PER_REGION: "8",
  };
  return Promise.all(kinds.map((kind) => startService(kind, environment)));
};

test("a dump that is restored into another database of the same server starts held", async () => {
  const database = await createTestDatabase("restored");
  await expectHeld(database.url);
  await database.drop();
});

test("a dump that is restored into another server starts held", async () => {
  const server = await startEmbeddedPostgres({ dataDir: join(folder, "other") });
  await expectHeld(server.url);
  await server.stop();
});

/** Expects that the owed attempts are sent once the cell is resumed, and that no sent attempt is sent again. */
async function expectHeld(url: string): Promise<void> {
  target.arrivals.length = 0;
  runPostgres("pg_restore", "--no-owner", "--exit-on-error", `--dbname=${url}`, dump);
  // A dump lacks the settings that are stored with the role.
  await migrate(url);
  const services = await startServices(url, "worker", "delivery");
  try {
    const held = await askAdmin<{ data: { name: string; reason: string }[] }>(url, "hold", "list");
    expect(held.data.map(({ name, reason }) => `${name} ${reason}`)).toEqual(
      REGIONS.map((name) => `${name} restored`),
    );
    expect(target.arrivals).toEqual([]);
    await askAdmin(url, "resume");
    await target.until((arrivals) => arrivals.length === JOBS);
    expect(target.arrivals.filter(({ jobId }) => ended.accepted.has(jobId))).toEqual([]);
  } finally {
    for (const service of services) await service.end("SIGKILL");
  }
}
