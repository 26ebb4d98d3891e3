import { readFileSync, readlinkSync } from "node:fs";

/**
 * Names this process so that nothing that ever runs has the same name: the machine's boot, the pid namespace, the
 * pid, and when it started (a pid is given again, but not twice in one tick of the clock). Where the system has no
 * /proc the name is one of which nothing can be proved.
 */
export function describeThisProcess(): string {
  const place = findPlace();
  const state = place === null ? null : readState(process.pid);
  return place === null || state === null
    ? `pid ${process.pid}`
    : `${place} ${process.pid} ${state.startTicks}`;
}

/**
 * True only if the described process has ended for certain: it ran in this boot of this machine and in this pid
 * namespace, and is there no more. A process that is frozen is alive, since it still holds its connections; one that
 * has ended but was not waited for by its parent (a zombie) is dead. False whenever anything is unknown.
 */
export function isProvedDead(description: string): boolean {
  const [, place, pidText, startTicks] = DESCRIPTION.exec(description) ?? [];
  if (place === undefined || place !== findPlace()) return false;
  const pid = Number(pidText);
  // Asked by signal first: a /proc that hides other users' processes shows the living as absent.
  if (!existsProcess(pid)) return true;
  const state = readState(pid);
  if (state === null) return false;
  return state.startTicks !== startTicks || state.hasEnded;
}

const DESCRIPTION = /^(\S+ pid:\[\d+\]) ([1-9]\d*) (\d+)$/;

/** Within one such place, a pid and a start name a process. */
function findPlace(): string | null {
  try {
    // A /proc mounted from another pid namespace counts processes that this one does not know.
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

// Positions in /proc/<pid>/stat (proc(5)) after the command's name, which may itself hold blanks and brackets.
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
