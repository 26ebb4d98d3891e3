import { readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { basename, join } from "node:path";

const KILL_AFTER_MS = 30_000;
const GIVE_UP_AFTER_MS = 60_000;
const POLL_MS = 20;

/** The name by which the processes of the cluster are found. No other data directory of the machine has the same. */
export function nameCluster(home: string): string {
  const { dev, ino } = statSync(home);
  return `jobwheel-${dev.toString(36)}-${ino.toString(36)}`;
}

/**
 * Waits until no process of an earlier server is left, then removes its pid file. Postgres would take a stale pid file to be
 * in use if another process has its pid by now, as is usual in containers.
 */
export async function endPredecessor(clusterName: string, cluster: string): Promise<void> {
  if (process.platform !== "linux") return;
  const killAt = Date.now() + KILL_AFTER_MS;
  const giveUpAt = Date.now() + GIVE_UP_AFTER_MS;
  for (let left = findServer(clusterName); left.length > 0; left = findServer(clusterName)) {
    if (Date.now() > giveUpAt)
      throw new Error(`an earlier Postgres does not end: pid ${left.map(({ pid }) => pid)}`);
    for (const { pid, postmaster } of left) {
      // Backends end with their postmaster. The signal is repeated, because a starting server ignores it.
      if (postmaster) signal(pid, Date.now() > killAt ? "SIGKILL" : "SIGINT");
    }
    await Bun.sleep(POLL_MS);
  }
  rmSync(join(cluster, "postmaster.pid"), { force: true });
}

function findServer(clusterName: string): { pid: number; postmaster: boolean }[] {
  const found: { pid: number; postmaster: boolean }[] = [];
  for (const entry of readdirSync("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    const words = readCommandLine(entry).split("\0");
    // A postmaster shows its arguments. A backend shows the title "postgres: <cluster name>: <its work>".
    const postmaster =
      basename(words[0] ?? "") === "postgres" && words.includes(`cluster_name=${clusterName}`);
    if (postmaster || words[0]?.startsWith(`postgres: ${clusterName}: `)) {
      found.push({ pid: Number(entry), postmaster });
    }
  }
  return found;
}

function readCommandLine(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8");
  } catch {
    return ""; // The process has ended meanwhile.
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // The process has ended by itself.
  }
}
