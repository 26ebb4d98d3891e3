import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Database } from "../../../shared/store/database/database.ts";

/** Starts a benchmark's processes, waits for them, and reads the CPU that they have used. */

export const ROOT = dirname(dirname(dirname(import.meta.dir)));
const CLOCK_TICK_US = 10_000;
const WAIT_MS_MAX = 120_000;
const LOOK_EVERY_MS = 20;
const STOP_TIMEOUT_MS = 10_000;

/** Starts a process. Answers its id, and adds to `stops` the function that ends it. */
export function spawnBound(
  command: string[],
  environment: Record<string, string>,
  stops: (() => unknown)[],
): number {
  // The processes end with the benchmark, however it ends.
  const bound = process.platform === "linux" ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
  const child = Bun.spawn(bound, {
    cwd: ROOT,
    env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "", ...environment },
    stdio: ["ignore", "ignore", "inherit"],
  });
  stops.push(async () => {
    child.kill("SIGTERM");
    const overdue = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
    await child.exited;
    clearTimeout(overdue);
  });
  return child.pid;
}

export async function isOk(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}

export async function until(
  what: string,
  condition: () => Promise<boolean>,
  lookEveryMs = LOOK_EVERY_MS,
): Promise<void> {
  const deadline = performance.now() + WAIT_MS_MAX;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within ${WAIT_MS_MAX} ms: ${what}`);
    await Bun.sleep(lookEveryMs);
  }
}

/** Runs a program of this folder to its end, with the input on stdin. Answers what it printed as JSON, and its CPU. */
export async function runProgram<Report>(
  file: string,
  input: object,
): Promise<{ report: Report; cpuUs: number }> {
  const command = [process.execPath, join(import.meta.dir, file)];
  const child = Bun.spawn(command, { stdio: [Buffer.from(JSON.stringify(input)), "pipe", "inherit"] });
  const text = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error(`${file} failed`);
  return { report: JSON.parse(text) as Report, cpuUs: Number(child.resourceUsage()?.cpuTime.total ?? 0) };
}

/** The user and system time of a process (proc(5), fields 14 and 15; with its dead children also 16 and 17). */
export function cpuUsOf(pid: number, alsoChildren = false): number {
  const fields = statOf(pid);
  const own = Number(fields[11]) + Number(fields[12]);
  return (alsoChildren ? own + Number(fields[13]) + Number(fields[14]) : own) * CLOCK_TICK_US;
}

/** The CPU of all running children of a process, except `leftOut`. */
export function childrenCpuUs(pid: number, leftOut: readonly number[] = []): number {
  let used = 0;
  for (const name of readdirSync("/proc")) {
    const child = Number(name);
    if (!Number.isInteger(child) || leftOut.includes(child)) continue;
    try {
      if (parentOf(child) === pid) used += cpuUsOf(child);
    } catch {
      // The process has ended since the folder was read.
    }
  }
  return used;
}

/** The process of the Postgres server behind a connection. */
export async function findServer(db: Database): Promise<number> {
  const [row] = await db.run<{ pid: number }>("own_backend", "SELECT pg_backend_pid() AS pid", []);
  return parentOf(row?.pid ?? 0);
}

export const parentOf = (pid: number) => Number(statOf(pid)[1]);

const statOf = (pid: number) =>
  readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ") ?? [];
