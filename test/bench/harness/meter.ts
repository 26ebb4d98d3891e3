import { readFileSync } from "node:fs";
import { childrenCpuUs, cpuUsOf } from "./processes.ts";

const CLOCK_TICK_US = 10_000;

/** The use of a stretch of time. CPU is in microseconds, by the name of the process. */
export interface Use {
  cpuUs: Map<string, number>;
  /** The CPU of known processes that are not measured, such as the benchmark's own. */
  apartUs: Map<string, number>;
  /** The CPU that other processes of the machine used, as a number of cores. */
  othersCores: number;
}

export interface Watched {
  pids: ReadonlyMap<string, number>;
  /** How much CPU each of these has used so far. */
  apart: Readonly<Record<string, () => number>>;
  /** The server's process, whether this benchmark alone uses the server, and the backends that are not counted. */
  postgres?: { pid: number; isOwn: boolean; isCounted: boolean; findOthers(): Promise<number[]> };
}

interface Reading {
  at: number;
  cpuUs: Map<string, number>;
  apartUs: Map<string, number>;
  busyUs: number;
}

/** CPU by process, divided by the number of jobs that it was used for. */
export function shareOf(usedUs: ReadonlyMap<string, number>, jobs: number): Record<string, number> {
  return Object.fromEntries([...usedUs].map(([name, us]) => [name, us / jobs]));
}

/** Answers a function that tells what was used until it is called. */
export async function beginUse(watched: Watched): Promise<() => Promise<Use>> {
  const before = await read(watched);
  return async () => {
    const after = await read(watched);
    const cpuUs = subtract(after.cpuUs, before.cpuUs);
    const apartUs = subtract(after.apartUs, before.apartUs);
    const knownUs = [...cpuUs.values(), ...apartUs.values()].reduce((sum, us) => sum + us, 0);
    const othersUs = Math.max(0, after.busyUs - before.busyUs - knownUs);
    return { cpuUs, apartUs, othersCores: othersUs / ((after.at - before.at) * 1_000) };
  };
}

async function read({ pids, apart, postgres }: Watched): Promise<Reading> {
  // The CPU includes children, such as those in which Redis rewrites its file.
  const cpuUs = new Map([...pids].map(([name, pid]) => [name, cpuUsOf(pid, true) + childrenCpuUs(pid)]));
  const apartUs = new Map(Object.entries(apart).map(([name, usedUs]) => [name, usedUs()]));
  apartUs.set("benchmark", cpuUsOf(process.pid));
  if (postgres !== undefined) {
    const leftOut = await postgres.findOthers();
    // Backends that have ended, such as autovacuum's, count too, unless the server is shared: others may have some.
    const postgresUs = cpuUsOf(postgres.pid, postgres.isOwn) + childrenCpuUs(postgres.pid, leftOut);
    (postgres.isCounted ? cpuUs : apartUs).set("postgres", postgresUs);
  }
  return { at: performance.now(), cpuUs, apartUs, busyUs: busyUs() };
}

function subtract(after: Map<string, number>, before: Map<string, number>): Map<string, number> {
  return new Map([...after].map(([name, us]) => [name, us - (before.get(name) ?? 0)]));
}

/** The busy time of all processors since the start: user, nice, system, interrupts and steal (proc(5)). */
function busyUs(): number {
  const fields = readFileSync("/proc/stat", "utf8").split("\n")[0]?.split(/\s+/).map(Number) ?? [];
  const [, user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0, steal = 0] = fields;
  return (user + nice + system + irq + softirq + steal) * CLOCK_TICK_US;
}
