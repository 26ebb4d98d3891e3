import { type ChildProcess, spawnSync } from "node:child_process";
import {
  appendFileSync,
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { basename, join } from "node:path";
import pg from "pg";
import {
  type Account,
  chooseAccount,
  launch,
  prepareBinaries,
} from "../../shared/platform/embedded-postgres/binaries.ts";
import { makeCluster, readPassword } from "../../shared/platform/embedded-postgres/cluster.ts";
import { endPredecessor, nameCluster } from "../../shared/platform/embedded-postgres/predecessor.ts";
import { spawnServer } from "../../shared/platform/embedded-postgres/server.ts";
import { copyFolder } from "./copy-folder.ts";
import { claimPort } from "./port.ts";
import { sendSignal } from "./signal.ts";
import { startTcpProxy, type TcpProxy } from "./tcp-proxy.ts";

/** The standby's name, by which the primary waits for it. */
const STANDBY = "standby";
const READY_TIMEOUT_MS = 180_000;
const LOOK_EVERY_MS = 50;
/** A primary that is alive and has not answered for so long does not come back by itself. */
const STANDS_STILL_MS = 30_000;
/** The largest file size on a full disk: no write beyond it succeeds, in the write-ahead log as in any other file. */
const FULL_DISK_BYTES = 1_048_576;

/** One server: its processes, and its folder. */
interface Server {
  port: number;
  home: string;
  data: string;
  name: string;
  process: ChildProcess | null;
}

/**
 * A primary and a synchronous standby, of the embedded binaries. No commit is answered before the standby has it on
 * disk. Their files lie under `folder`, and they die with the test process (on Linux).
 */
export class ReplicatedPostgres {
  /** The address of the primary. A promotion changes it. */
  readonly place = { host: "127.0.0.1", port: 0 };
  /** The proxy between the standby and its primary. */
  readonly replication: TcpProxy;
  private readonly replicationPlace = { host: "127.0.0.1", port: 0 };
  private readonly account: Account | undefined;
  private readonly binaries: string;
  private readonly password: string;
  private serverCount = 0;
  private primary: Server;
  private standby: Server | null = null;

  private constructor(
    private readonly folder: string,
    replication: TcpProxy,
    place: { host: string; port: number },
  ) {
    this.replication = replication;
    this.replicationPlace = place;
    const home = this.newHome();
    this.account = chooseAccount(home);
    this.binaries = prepareBinaries(this.account);
    this.password = readPassword(home, this.account);
    this.primary = this.serverIn(home);
  }

  static async start(folder: string): Promise<ReplicatedPostgres> {
    mkdirSync(folder, { recursive: true });
    chmodSync(folder, 0o755);
    const place = { host: "127.0.0.1", port: 0 };
    const cluster = new ReplicatedPostgres(folder, await startTcpProxy(place), place);
    await cluster.begin();
    return cluster;
  }

  private async begin(): Promise<void> {
    const { primary } = this;
    await makeCluster(primary.home, primary.data, this.binaries, this.account);
    // The primary keeps the log that a standby asks for after it was away for a while. A server that is killed leaves no
    // memory in /dev/shm.
    appendFileSync(
      join(primary.data, "postgresql.conf"),
      "wal_keep_size = '512MB'\nwal_retrieve_retry_interval = '200ms'\ndynamic_shared_memory_type = 'mmap'\n",
    );
    primary.port = await claimPort();
    await this.run(primary);
    this.place.port = primary.port;
    await this.addStandby();
  }

  /** The account of the servers; undefined if it is that of this process. */
  get runsAs(): Account | undefined {
    return this.account;
  }

  /** The URL of a superuser on the server that is the primary by now. */
  get url(): string {
    return this.urlOf(this.place.port);
  }

  /** The same URL with another port, such as that of a proxy. */
  urlOf(port: number): string {
    return `postgres://postgres:${this.password}@127.0.0.1:${port}/postgres`;
  }

  /** Copies the primary while it works, starts the copy as its standby, and has the primary wait for it from then on. */
  async addStandby(): Promise<void> {
    if (this.standby !== null) return;
    const { primary } = this;
    const home = this.newHome();
    const standby = this.serverIn(home);
    await this.ask(primary.port, async (client) => {
      await client.query("SELECT pg_backup_start('standby', fast => true)");
      await copyFolder(primary.data, standby.data);
      const { rows } = await client.query<{ labelfile: string }>("SELECT labelfile FROM pg_backup_stop()");
      rmSync(join(standby.data, "pg_wal"), { recursive: true });
      rmSync(join(standby.data, "postmaster.pid"), { force: true });
      mkdirSync(join(standby.data, "pg_wal"), { mode: 0o700 });
      const way = `host=127.0.0.1 port=${this.replication.port} user=postgres password=${this.password} application_name=${STANDBY}`;
      writeFileSync(join(standby.data, "backup_label"), rows[0]?.labelfile ?? "");
      writeFileSync(join(standby.data, "standby.signal"), "");
      writeFileSync(join(standby.data, "postgresql.auto.conf"), `primary_conninfo = '${way}'\n`);
    });
    const { uid, gid } = statSync(primary.data);
    for (const name of ["pg_wal", "backup_label", "standby.signal", "postgresql.auto.conf"])
      chownSync(join(standby.data, name), uid, gid);
    standby.port = await claimPort();
    this.replicationPlace.port = primary.port;
    await this.run(standby);
    this.standby = standby;
    await this.ask(primary.port, async (client) => {
      await client.query(`ALTER SYSTEM SET synchronous_standby_names = '${STANDBY}'`);
      await client.query("SELECT pg_reload_conf()");
    });
    await this.untilInSync();
  }

  /** Resolves once the standby has all that the primary has flushed. False after `timeoutMs`. */
  async untilInSync(timeoutMs = READY_TIMEOUT_MS): Promise<boolean> {
    const giveUpAt = performance.now() + timeoutMs;
    while (performance.now() < giveUpAt) {
      const isInSync = await this.ask(this.place.port, async (client) => {
        const { rowCount } = await client.query(IS_IN_SYNC);
        return rowCount === 1;
      }).catch(() => false);
      if (isInSync) return true;
      await Bun.sleep(LOOK_EVERY_MS);
    }
    return false;
  }

  /**
   * Kills the primary, makes sure that no process of it is left, promotes the standby, and has `place` name it. Answers
   * when the primary was dead and when the promoted one had answered, by performance.now(). There is no standby
   * afterwards.
   */
  async promote(): Promise<{ fencedAt: number; promotedAt: number }> {
    const { primary, standby } = this;
    if (standby === null) throw new Error("there is no standby to promote");
    await this.end(primary);
    const fencedAt = performance.now();
    await this.ask(standby.port, (client) => client.query("SELECT pg_promote(true, 60)"));
    this.primary = standby;
    this.standby = null;
    this.place.port = standby.port;
    const promotedAt = performance.now();
    rmSync(primary.home, { recursive: true, force: true });
    return { fencedAt, promotedAt };
  }

  /** Kills the primary's processes. */
  killPrimary(): Promise<void> {
    return this.end(this.primary);
  }

  /** Starts the primary again where it is not running. It recovers, and its standby comes back to it. */
  async startPrimary(): Promise<void> {
    if (this.primary.process === null) await this.run(this.primary);
  }

  /** Stops every process of the standby, or lets them go on. The primary's commits wait meanwhile. */
  signalStandby(signal: "SIGSTOP" | "SIGCONT"): void {
    if (this.standby !== null) for (const pid of processesOf(this.standby)) sendSignal(pid, signal);
  }

  /** Lets no file of the primary be written beyond FULL_DISK_BYTES. */
  fillDisk(): void {
    this.limitFiles(String(FULL_DISK_BYTES));
  }

  /**
   * Ends `fillDisk`. A primary that has ended because of it is started again. So is one that does not come back:
   * Postgres 18.4 stands still if the recovery after a crash meets the full disk as well.
   */
  async freeDisk(): Promise<void> {
    this.limitFiles("unlimited");
    let killAt = performance.now() + STANDS_STILL_MS;
    for (;;) {
      await this.startPrimary();
      // The primary may have been about to end.
      const isUp = await this.ask(this.primary.port, (client) => client.query("SELECT 1")).then(
        () => true,
        () => false,
      );
      if (isUp) return;
      if (performance.now() > killAt) {
        await this.end(this.primary);
        killAt = performance.now() + STANDS_STILL_MS;
      }
      await Bun.sleep(LOOK_EVERY_MS);
    }
  }

  /** Asks the server that is the primary by now. */
  async query<Row>(text: string, values: unknown[] = []): Promise<Row[]> {
    return this.ask(this.place.port, async (client) => (await client.query(text, values)).rows);
  }

  async stop(): Promise<void> {
    for (const server of [this.primary, this.standby]) if (server !== null) await this.end(server);
    await this.replication.stop();
  }

  /**
   * Sets the size beyond which the primary can write to no file. Processes that it starts inherit this soft limit. The
   * hard limit stays, so that the soft one can be raised again.
   */
  private limitFiles(bytes: string): void {
    for (const pid of processesOf(this.primary)) {
      const command = ["prlimit", "--pid", String(pid), `--fsize=${bytes}:unlimited`];
      // Root may lack the right to limit the processes of another account.
      const [file, args] = launch(command, this.account, "KILL");
      const done = spawnSync(file, args, { encoding: "utf8" });
      if (done.status !== 0 && processesOf(this.primary).includes(pid))
        throw new Error(`prlimit: ${done.stderr}`);
    }
  }

  private newHome(): string {
    const home = join(this.folder, `postgres-${++this.serverCount}`);
    mkdirSync(home);
    if (this.account !== undefined) chownSync(home, this.account.uid, this.account.gid);
    chmodSync(home, 0o700);
    return home;
  }

  private serverIn(home: string): Server {
    return { port: 0, home, data: join(home, "data"), name: nameCluster(home), process: null };
  }

  private async run(server: Server): Promise<void> {
    const { data, name, port } = server;
    const log = join(this.folder, `${basename(server.home)}.log`);
    const start = {
      cluster: data,
      clusterName: name,
      binaries: this.binaries,
      account: this.account,
      log: () => {},
    };
    const process = spawnServer(start, port);
    server.process = process;
    // The last lines of its log may come after the folder was removed.
    process.stderr?.on("data", (chunk) => existsSync(this.folder) && appendFileSync(log, chunk));
    process.once("exit", () => {
      if (server.process === process) server.process = null;
    });
    const giveUpAt = performance.now() + READY_TIMEOUT_MS;
    while (
      !(await this.ask(port, (client) => client.query("SELECT 1")).then(
        () => true,
        () => false,
      ))
    ) {
      if (server.process === null) throw new Error(`Postgres ended at its start: see ${log}`);
      if (performance.now() > giveUpAt) throw new Error(`Postgres did not start: see ${log}`);
      await Bun.sleep(LOOK_EVERY_MS);
    }
  }

  /** Kills the server. Its sessions end with it: when this resolves, no session is left that could answer a commit. */
  private async end(server: Server): Promise<void> {
    const { process } = server;
    if (process !== null) {
      const ended = new Promise((resolve) => process.once("exit", resolve));
      process.kill("SIGKILL");
      await ended;
    }
    await endPredecessor(server.name, server.data);
  }

  private async ask<Answer>(port: number, act: (client: pg.Client) => Promise<Answer>): Promise<Answer> {
    const client = new pg.Client({
      connectionString: this.urlOf(port),
      connectionTimeoutMillis: 5_000,
      options: "-c statement_timeout=60s",
    });
    // Faults end connections, and then the query fails as well.
    client.on("error", () => undefined);
    await client.connect();
    try {
      return await act(client);
    } finally {
      await client.end().catch(() => undefined);
    }
  }
}

const IS_IN_SYNC = `
SELECT FROM pg_stat_replication
 WHERE application_name = '${STANDBY}' AND state = 'streaming' AND sync_state = 'sync'
   AND flush_lsn >= pg_current_wal_flush_lsn()`;

/** The server's first process and those that it has started. */
function processesOf({ process }: Server): number[] {
  if (process?.pid === undefined) return [];
  const parent = String(process.pid);
  const children = readdirSync("/proc").filter((entry) => /^\d+$/.test(entry) && parentOf(entry) === parent);
  return [process.pid, ...children.map(Number)];
}

function parentOf(pid: string): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1];
  } catch {
    return undefined; // It has ended meanwhile.
  }
}
