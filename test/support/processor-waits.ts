import { readdirSync, readFileSync } from "node:fs";

/** The waits of a thread within this time count as one pause. */
const WINDOW_MS = 1_800;
const NS_PER_MS = 1e6;

/** How long processes wait for a processor, as Linux counts it. Elsewhere no wait is found. */
export class ProcessorWaits {
  private readonly looks = new Map<string, { at: number; waitedMs: number }[]>();

  /** The longest time, in milliseconds, that a thread of the process has waited lately, as far as it was looked at. */
  waitOf(pid: number): number {
    return Math.max(0, ...threadsOf(pid).map((thread) => this.waitOfThread(thread)));
  }

  /** What was found is not found again. */
  beginAnew(): void {
    for (const [thread, seen] of this.looks) this.looks.set(thread, seen.slice(-1));
  }

  private waitOfThread(thread: string): number {
    const waitedMs = readWaitedMs(thread);
    if (waitedMs === null) {
      this.looks.delete(thread);
      return 0;
    }
    const at = performance.now();
    const lately = (this.looks.get(thread) ?? []).filter((look) => look.at > at - WINDOW_MS);
    this.looks.set(thread, [...lately, { at, waitedMs }]);
    return waitedMs - (lately[0]?.waitedMs ?? waitedMs);
  }
}

/** The folders of the threads that do a process's work: its main thread, or all of a Go program, which runs on any of them. */
function threadsOf(pid: number): string[] {
  const tasks = `/proc/${pid}/task`;
  try {
    const isGo = readFileSync(`/proc/${pid}/comm`, "utf8").startsWith("nats-server");
    return (isGo ? readdirSync(tasks) : [String(pid)]).map((task) => `${tasks}/${task}`);
  } catch {
    return [];
  }
}

/** How long the thread has waited for a processor; null if it is gone, or the kernel does not count it. */
function readWaitedMs(thread: string): number | null {
  try {
    return Number(readFileSync(`${thread}/schedstat`, "utf8").split(" ")[1]) / NS_PER_MS;
  } catch {
    return null;
  }
}
