import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { basename, join } from "node:path";

const KILL_AFTER_MS = 30_000;
const GIVE_UP_AFTER_MS = 60_000;
const POLL_MS = 20;
const PS_BYTES_MAX = 67_108_864;

/** The name by which the processes of the cluster are found. No other data directory of the machine has the same. */
export function nameCluster(home: string): string {
  const { dev, ino } = statSync(home);
  return `jobwheel-${dev.toString(36)}-${ino.toString(36)}`;
}

/** Lists the processes of the machine, with those of Postgres among them: each pid, and its arguments with blanks between them. */
export type ListProcesses = () => { pid: number; command: string }[];

/**
 * Waits until no process of an earlier server is left, then removes its pid file. Postgres would take a stale pid file to be
 * in use if another process has its pid by now, as is usual in containers.
 */
export async function endPredecessor(
  clusterName: string,
  cluster: string,
  list: ListProcesses = process.platform === "linux" ? listByProc : listByPs,
): Promise<void> {
  const killAt = Date.now() + KILL_AFTER_MS;
  const giveUpAt = Date.now() + GIVE_UP_AFTER_MS;
  for (let left = findServer(clusterName, list); left.length > 0; left = findServer(clusterName, list)) {
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

function findServer(clusterName: string, list: ListProcesses): { pid: number; postmaster: boolean }[] {
  // A postmaster shows its arguments. A backend shows the title "postgres: <cluster name>: <its work>".
  const ofPostmaster = new RegExp(`^(?:.*/)?postgres -D .* cluster_name=${clusterName}(?: |$)`);
  return list().flatMap(({ pid, command }) => {
    const postmaster = ofPostmaster.test(command);
    return postmaster || command.startsWith(`postgres: ${clusterName}: `) ? [{ pid, postmaster }] : [];
  });
}

function listByProc(): ReturnType<ListProcesses> {
  return readdirSync("/proc")
    .filter((entry) => /^\d+$/.test(entry))
    .map((entry) => ({ pid: Number(entry), words: readCommandLine(entry).split("\0") }))
    .filter(
      ({ words: [program = ""] }) => basename(program) === "postgres" || program.startsWith("postgres: "),
    )
    .map(({ pid, words }) => ({ pid, command: words.join(" ") }));
}

/** The form of the arguments is one that ps takes on macOS and on Linux. */
export function listByPs(): ReturnType<ListProcesses> {
  const { stdout, error } = spawnSync("ps", ["axww", "-o", "pid=", "-o", "command="], {
    encoding: "utf8",
    maxBuffer: PS_BYTES_MAX,
  });
  if (error !== undefined) throw new Error(`ps cannot list the processes: ${error.message}`);
  return [...stdout.matchAll(/^ *(\d+) (.*)$/gm)].map(([, pid, command = ""]) => ({
    pid: Number(pid),
    command,
  }));
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
