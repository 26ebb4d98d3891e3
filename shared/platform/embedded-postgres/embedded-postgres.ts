import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { QUOTES_VALUES } from "../error-text.ts";
import { chooseAccount, prepareBinaries } from "./binaries.ts";
import { makeCluster, readPassword } from "./cluster.ts";
import { CLUSTER, claimHome, homeOf } from "./home.ts";
import { endPredecessor, nameCluster } from "./predecessor.ts";
import { spawnServer, startServer, stopServer, waitUntilReady } from "./server.ts";

export interface EmbeddedPostgres {
  /** A superuser's connection string, on 127.0.0.1 and a port that changes from start to start. */
  url: string;
  /** Ends every session and shuts down with a checkpoint. May be called again. */
  stop(): Promise<void>;
}

const RESTART_PAUSE_MS = 1_000;

/**
 * Starts a durable Postgres whose data is under `dataDir`, and creates it there on the first start. One process at a time may
 * have a data directory: a second is refused with DataDirInUse, which names the first, and a folder of another program with
 * ForeignData. The start first clears away what a killed process left behind: half a cluster, a stale pid file, a server still
 * shutting down. On Linux the server shuts down cleanly when this process dies, even by SIGKILL. A server that dies by itself
 * is started again, on the same port and with all committed data.
 *
 * Postgres refuses to run as root. Started by root it runs as the account that owns the data, which on the first
 * start becomes `postgres` or `nobody`.
 */
export async function startEmbeddedPostgres({
  dataDir,
  log = () => {},
}: {
  dataDir: string;
  log?: (line: string) => void;
}): Promise<EmbeddedPostgres> {
  const home = homeOf(dataDir);
  mkdirSync(home, { recursive: true });
  const release = claimHome(home);
  try {
    const account = chooseAccount(home);
    const cluster = join(home, CLUSTER);
    const binaries = prepareBinaries(account);
    const password = readPassword(home, account);
    const clusterName = nameCluster(home);
    await endPredecessor(clusterName, cluster);
    if (!existsSync(cluster)) await makeCluster(home, cluster, binaries, account);

    const start = { cluster, clusterName, binaries, account, log };
    const { port, process: first } = await startServer(start);
    let server = first;
    let revival = Promise.resolve();
    let stopped: Promise<void> | undefined;
    const reviveWhenItDies = () => {
      server.once("exit", () => {
        revival = revive();
      });
    };
    const revive = async () => {
      if (stopped === undefined) log("jobwheel WARNING: Postgres has ended, and is started again");
      while (stopped === undefined) {
        try {
          await endPredecessor(clusterName, cluster);
          if (stopped !== undefined) return;
          server = spawnServer(start, port);
          const failure = await waitUntilReady(server, log);
          if (failure === undefined) return reviveWhenItDies();
        } catch (error) {
          log(`jobwheel ERROR: ${error instanceof Error ? error.message : error}`);
        }
        await Bun.sleep(RESTART_PAUSE_MS);
      }
    };
    reviveWhenItDies();
    return {
      url: `postgres://postgres:${password}@127.0.0.1:${port}/postgres`,
      stop: () => {
        stopped ??= stopServer(server)
          .then(() => revival)
          .finally(release);
        return stopped;
      },
    };
  } catch (error) {
    release();
    throw error;
  }
}

/**
 * Whether a line of the log deserves attention: trouble of Postgres itself, and statements that it refused, unless the message
 * quotes a value. Further lines, with the row or with the rest of a value, do not begin like that.
 */
export function isComplaint(line: string): boolean {
  const [, code = ""] = /^\S+ \S+ UTC \[\d+\] (\w{5}) (?:WARNING|ERROR|FATAL|PANIC): /.exec(line) ?? [];
  return /^jobwheel (WARNING|ERROR): /.test(line) || (code !== "" && !QUOTES_VALUES.test(code));
}
