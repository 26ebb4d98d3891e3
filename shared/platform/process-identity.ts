import { readFileSync, readlinkSync } from "node:fs";

/**
 * A description of this process that no other process ever has: the machine's boot, the pid namespace, the pid, and the
 * start time (pids are reused, but not within one clock tick). On a system without /proc it is only the pid, from which
 * nothing can be proved.
 */
export function describeThisProcess(): string {
  const place = findPlace();
  const state = place === null ? null : readState(process.pid);
  return place === null || state === null
    ? `pid ${process.pid}`
    : `${place} ${process.pid} ${state.startTicks}`;
}

/**
 * True only if the described process has certainly ended: it ran in this boot of this machine and in this pid namespace, and
 * does not exist any more. A frozen process counts as alive, because it still holds its connections. A zombie, which its
 * parent has not waited for, counts as dead. False whenever anything is unknown.
 */
export function isProvedDead(description: string): boolean {
  const [, place, pidText, startTicks] = DESCRIPTION.exec(description) ?? [];
  if (place === undefined || place !== findPlace()) return false;
  const pid = Number(pidText);
  // The signal is tried first: some systems hide the processes of other users in /proc.
  if (!existsProcess(pid)) return true;
  const state = readState(pid);
  if (state === null) return false;
  return state.startTicks !== startTicks || state.hasEnded;
}

const DESCRIPTION = /^(\S+ pid:\[\d+\]) ([1-9]\d*) (\d+)$/;

/** The boot and the pid namespace. Within them a pid and a start time identify a process. */
function findPlace(): string | null {
  try {
    // /proc can be mounted from another pid namespace, where processes have other pids.
    if (readlinkSync("/proc/self") !== String(process.pid)) return null;
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    return `${boot} ${readlinkSync("/proc/self/ns/pid")}`;
  } catch {
    return null;
  }
}

function existsProcess(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as { code?: unknown }).code !== "ESRCH";
  }
}

// Positions in /proc/<pid>/stat (proc(5)) after the name of the command, which may hold blanks and brackets.
const STATE = 0;
const THREAD_COUNT = 17;
const START_TICKS = 19;

function readState(pid: number): { startTicks: string; hasEnded: boolean } | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const startTicks = fields[START_TICKS];
    if (startTicks === undefined) return null;
    // The first thread of a process may have ended while others still run.
    const hasEnded = ["Z", "X"].includes(fields[STATE] ?? "") && Number(fields[THREAD_COUNT]) <= 1;
    return { startTicks, hasEnded };
  } catch {
    return null;
  }
}
