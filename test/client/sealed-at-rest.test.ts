import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import pg from "pg";
import { createClient, makeSealKey } from "../../shared/client/index.ts";
import { receive } from "../../shared/client/receive/index.ts";
import { until } from "../flow/support.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { findPostgresClient, hasPostgresClient } from "../support/postgres-client.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";

setDefaultTimeout(180_000);

/** A text that only the receiver may see, and a text that is sent unsealed: each search must find the unsealed text. */
const [SEALED, OPEN] = [
  `sealed-${randomBytes(12).toString("hex")}`,
  `open-${randomBytes(12).toString("hex")}`,
];
const folder = mkdtempSync(join(tmpdir(), "sealed-at-rest-"));
const received: unknown[] = [];
let database: TestDatabase;
let standalone: ServiceProcess;
let direct: pg.Client;
let firstSegment: string;
let server: ReturnType<typeof Bun.serve>;

beforeAll(async () => {
  database = await createTestDatabase("sealed");
  direct = new pg.Client({ connectionString: database.url });
  await direct.connect();
  // Other tests make and drop databases meanwhile, which lets Postgres recycle segments of its log. The slot keeps the
  // segments from now on. It is temporary: it ends with this connection.
  const slot = `sealed_${randomBytes(6).toString("hex")}`;
  await ask("SELECT pg_create_physical_replication_slot($1, true, true)", [slot]);
  [{ name: firstSegment }] = await ask("SELECT pg_walfile_name(pg_current_wal_lsn()) AS name");
  const settings = { DATA_DIR: folder, DATABASE_URL: database.url, LOG_LEVEL: "debug" };
  standalone = await startService("standalone", settings);
  await sendAndReceive();
});
afterAll(async () => {
  await server?.stop(true);
  await standalone?.end("SIGTERM");
  await direct.end();
  await database?.drop();
  rmSync(folder, { recursive: true, force: true });
});

/** Sends the text in each way in which payloads are sent, and waits until a receiver has opened it, and has refused one. */
async function sendAndReceive(): Promise<void> {
  const apiKey = await until(() => /svc_dev_[A-Za-z0-9]+(?=\s)/.exec(standalone.output)?.[0]);
  const key = makeSealKey();
  const options = { baseUrl: `http://127.0.0.1:${standalone.port}`, apiKey };
  const sealing = createClient({ ...options, sealWith: key });
  const { secret } = await sealing.project.rotateSigningSecret();
  const onAttempt = ({ payload }: { payload: unknown }) => received.push(payload);
  const receiver = receive({ secrets: secret, openWith: key, onAttempt });
  server = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: receiver });

  const target_url = `http://127.0.0.1:${server.port}/cards?a=1`;
  const payload = { card: SEALED };
  await sealing.jobs.create({ target_url, payload });
  await sealing.jobs.createBatch([{ target_url, payload }]);
  const { id } = await sealing.schedules.put("cards", { target_url, payload, cron: "@yearly" });
  await sealing.schedules.update(id, { target_url, payload: { ...payload, changed: true } });
  await sealing.schedules.run(id);
  const echo = `http://127.0.0.1:${standalone.opsPort}/echo`;
  await createClient(options).jobs.create({ target_url: echo, payload: { card: OPEN } });
  // The receiver refuses a payload that it cannot open, with a reason that the service records.
  const refused = await createClient(options).jobs.create({
    target_url,
    payload: { $sealed: "v1.a.b.c" },
    retry_policy: { max_attempts: 1 },
  });
  await until(() => received.length === 3);
  await until(() => standalone.output.includes(OPEN));
  const run = await until(async () =>
    (await sealing.runs.list({ job_id: refused.id })).data.find(({ status }) => status === "failed"),
  );
  expect(run).toMatchObject({
    response_status: 422,
    error: "unreadable_seal: The seal is none of version v1.",
  });
}

async function ask(text: string, values: unknown[] = []) {
  return (await direct.query(text, values)).rows;
}

describe("of a sealed payload", () => {
  test("the receiver sees the text", () => {
    const plain = { card: SEALED };
    expect(received).toHaveLength(3);
    expect(received).toContainEqual(plain);
    expect(received).toContainEqual({ ...plain, changed: true });
  });

  test("the service's log, on its lowest level, has no byte", () => {
    expect(standalone.output).toContain(OPEN);
    expect(standalone.output).not.toContain(SEALED);
  });

  test("no row of any table has a byte", async () => {
    const tables = await ask(
      "SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text !~ '^pg_|^information'",
    );
    const holds = async (text: string) => {
      const found: string[] = [];
      for (const { name } of tables) {
        const like = [`%${text}%`, `%${Buffer.from(text).toString("hex")}%`];
        const rows = await ask(`SELECT 1 FROM ${name} AS t WHERE t::text LIKE ANY ($1) LIMIT 1`, [like]);
        if (rows.length > 0) found.push(name);
      }
      return found;
    };
    expect(await holds(OPEN)).not.toEqual([]);
    expect(await holds(SEALED)).toEqual([]);
  });

  test("no file of the database and of its write-ahead log has a byte, from which base backups are made", async () => {
    await ask("CHECKPOINT");
    const holds = (text: string) =>
      ask(
        `WITH database AS (SELECT format('base/%s', oid) AS folder FROM pg_database WHERE datname = current_database()),
              files AS (SELECT format('%s/%s', folder, pg_ls_dir(folder)) AS file FROM database
                        UNION ALL SELECT format('pg_wal/%s', name) FROM pg_ls_waldir() WHERE name >= $2)
         SELECT file FROM files WHERE position($1::bytea in pg_read_binary_file(file, true)) > 0`,
        [Buffer.from(text), firstSegment],
      );
    const found = (await holds(OPEN)).map(({ file }) => file.split("/")[0]);
    expect(new Set(found)).toEqual(new Set(["base", "pg_wal"]));
    expect(await holds(SEALED)).toEqual([]);
  });

  // The test is skipped, and counts as skipped, where the programs would have to be downloaded first.
  test.skipIf(!hasPostgresClient())("a dump has no byte", () => {
    const dump = join(folder, "dump.sql");
    findPostgresClient()("pg_dump", `--file=${dump}`, database.url);
    const text = readFileSync(dump, "utf8");
    expect(text).toContain(OPEN);
    expect(text).not.toContain(SEALED);
    expect(text).not.toContain(Buffer.from(SEALED).toString("hex"));
  });
});
