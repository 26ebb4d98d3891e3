import {
  appendFileSync,
  chmodSync,
  chownSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import pg from "pg";
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from "../../shared/platform/embedded-postgres/embedded-postgres.ts";
import { copyFolder } from "./copy-folder.ts";

/**
 * A Postgres of a test's own that can be backed up and lost as operators do it, with base backups and an archive of its
 * log.
 */
export interface ArchivingPostgres {
  url: string;
  port: number;
  /** Copies the data directory while it is in use. */
  backUp(): Promise<Backup>;
  /** Resolves once everything that is committed by now is in the archive. */
  archive(): Promise<void>;
  /** Sends SIGKILL. Commits that were not archived are lost, unless the server's disk is kept. */
  kill(): Promise<void>;
  /** Once this server is killed, its disk serves as that of a synchronous standby: it has every answered commit. */
  readonly disk: Backup;
  stop(): Promise<void>;
}

/** The folders of a backup. */
export interface Backup {
  data: string;
  password: string;
  archive: string;
}

const LOOK_EVERY_MS = 20;
const ARCHIVED_MS = 20_000;

/**
 * Starts one under `folder`, with its archive in `folder`/archive. Postgres runs as another user than root, and must be
 * able to read the folder.
 */
export async function startArchivingPostgres(folder: string): Promise<ArchivingPostgres> {
  const first = await startEmbeddedPostgres({ dataDir: folder });
  const archive = join(folder, "archive");
  mkdirSync(archive);
  const owner = statSync(dataOf(folder));
  chownSync(archive, owner.uid, owner.gid);
  chmodSync(folder, 0o755);
  await withClient(first.url, async (client) => {
    await client.query("ALTER SYSTEM SET archive_mode = on");
    // A file appears under its name once it is complete, and only once.
    await client.query(
      `ALTER SYSTEM SET archive_command = 'test ! -f ${archive}/%f && cp %p ${archive}/%f.new && mv ${archive}/%f.new ${archive}/%f'`,
    );
  });
  // The archiver starts with the next start of the server.
  await first.stop();
  return running(folder, await startEmbeddedPostgres({ dataDir: folder }));
}

/**
 * Restores a backup into the empty `folder`, up to an instant (as Postgres writes it) or to the end of the archive.
 * Either way a new timeline begins.
 */
export async function restorePostgres(
  folder: string,
  backup: Backup,
  { until }: { until?: string } = {},
): Promise<ArchivingPostgres> {
  const home = join(folder, "postgres");
  mkdirSync(home, { recursive: true });
  chmodSync(folder, 0o755);
  await copyFolder(backup.data, dataOf(folder));
  await copyFolder(backup.password, join(home, "password"));
  // A start recognizes the folder as its own by this lock.
  writeFileSync(join(home, "lock"), "");
  const settings = {
    archive_mode: "off",
    restore_command: `cp ${backup.archive}/%f "%p"`,
    ...(until !== undefined && { recovery_target_time: until, recovery_target_action: "promote" }),
  };
  const lines = Object.entries(settings).map(([name, value]) => `${name} = '${value}'\n`);
  appendFileSync(join(dataOf(folder), "postgresql.auto.conf"), lines.join(""));
  writeFileSync(join(dataOf(folder), "recovery.signal"), "");
  return running(folder, await startEmbeddedPostgres({ dataDir: folder }));
}

const dataOf = (folder: string) => join(folder, "postgres", "data");

function running(folder: string, server: EmbeddedPostgres): ArchivingPostgres {
  const data = dataOf(folder);
  const places = { password: join(folder, "postgres", "password"), archive: join(folder, "archive") };
  return {
    url: server.url,
    disk: { data, ...places },
    port: Number(new URL(server.url).port),
    async backUp() {
      const backup = join(folder, "backup");
      await withClient(server.url, async (client) => {
        await client.query("SELECT pg_backup_start('test', fast => true)");
        await copyFolder(data, backup);
        const { rows } = await client.query<{ labelfile: string }>("SELECT labelfile FROM pg_backup_stop()");
        // The archive has the log that was written meanwhile, and the copy must lack the server's pid file.
        rmSync(join(backup, "pg_wal"), { recursive: true });
        rmSync(join(backup, "postmaster.pid"), { force: true });
        mkdirSync(join(backup, "pg_wal"), { mode: 0o700 });
        writeFileSync(join(backup, "backup_label"), rows[0]?.labelfile ?? "");
        const { uid, gid } = statSync(data);
        for (const name of ["pg_wal", "backup_label"]) chownSync(join(backup, name), uid, gid);
      });
      return { data: backup, ...places };
    },
    async archive() {
      await withClient(server.url, async (client) => {
        const { rows } = await client.query<{ file: string }>(
          "SELECT pg_walfile_name(pg_switch_wal()) AS file",
        );
        const file = rows[0]?.file ?? "";
        const giveUpAt = performance.now() + ARCHIVED_MS;
        for (;;) {
          const asked = await client.query("SELECT FROM pg_stat_archiver WHERE last_archived_wal >= $1", [
            file,
          ]);
          if (asked.rowCount === 1) return;
          if (performance.now() > giveUpAt) throw new Error(`${file} was not archived`);
          await Bun.sleep(LOOK_EVERY_MS);
        }
      });
    },
    async kill() {
      const [pid] = readFileSync(join(data, "postmaster.pid"), "utf8").split("\n");
      process.kill(Number(pid), "SIGKILL");
      await server.stop();
    },
    stop: () => server.stop(),
  };
}

async function withClient(url: string, act: (client: pg.Client) => Promise<unknown>): Promise<void> {
  const client = new pg.Client({ connectionString: url, options: "-c statement_timeout=60s" });
  await client.connect();
  try {
    await act(client);
  } finally {
    await client.end();
  }
}
