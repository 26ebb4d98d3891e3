import type { Fault, Operation, Plan, Step, WantedJob } from "./plan.ts";
import type { Random } from "./random.ts";
import { FATES } from "./server.ts";
import { HABITS } from "./targets.ts";

/** A project that parks attempts at down hosts. Its host, which goes down, has failed often when the cell begins. */
export interface WatchedHost {
  projectNo: number;
  host: number;
}

/** Schedules target host 0. */
const FIRST_HOST = 1;
const AWAY_FROM_MS = 1_500;

/** Few of the cells have a watched host, since parked attempts take long to come back. */
export const planWatchedHost = (random: Random): WatchedHost | null =>
  random.chance(0.22) ? { projectNo: 1 + random.below(2), host: FIRST_HOST + random.below(2) } : null;

/**
 * Sends most jobs of the project to its host. Returns further steps: the host is away for a while, more jobs, the host
 * is parked by hand, and faults.
 */
export function planHostSteps(
  random: Random,
  { watched, workers, deliveryNodes, projects }: Omit<Plan, "steps">,
  steps: readonly Step[],
  timeOf: (random: Random) => number,
): Step[] {
  if (watched === null) return [];
  const { projectNo, host } = watched;
  const jobs = steps.flatMap((step) => (step.kind === "create" ? step.jobs : []));
  for (const job of jobs) if (job.project === projectNo - 1 && random.chance(0.7)) job.host = host;
  const at = AWAY_FROM_MS + random.below(2_500);
  const away: Fault = { kind: "host away", at, forMs: 5_000 + random.below(14_000), host };
  const job = (): WantedJob => ({
    ...{ project: projectNo - 1, environment: "production", host },
    region: projects[projectNo - 1]?.defaultRegion ?? "us-east",
    delayMs: random.pick([0, random.below(3_000)]),
    habit: random.pick(["good", "good", ...HABITS]),
    ...{ maxAttempts: 1 + random.below(3), baseSeconds: 1, capSeconds: 1 },
  });
  const bursts = [at + 200, at + 1_500 + random.below(6_000)].map(
    (burstAt): Operation => ({
      ...{ kind: "create", at: burstAt },
      jobs: Array.from({ length: 2 + random.below(4) }, job),
    }),
  );
  const forMs = 500 + random.below(5_000);
  const byHand: Operation = { kind: "park host", at: timeOf(random), forMs, host, projectNo };
  const named = random.pick(["host", "whole"]);
  const crash = { named, calls: 1 + random.below(4), isAfterCall: random.chance(0.6) };
  const node = random.below(workers + deliveryNodes);
  const faults: Fault[] = [
    { kind: "crash", at: timeOf(random), node, crash, restartsAfterMs: 100 + random.below(3_000) },
    {
      ...{ kind: "statements", at: timeOf(random), forMs, node: null },
      what: { names: named, chance: 0.5, fates: FATES },
    },
  ];
  return [
    away,
    ...bursts,
    ...(random.chance(0.25) ? [byHand] : []),
    ...(random.chance(0.5) ? [random.pick(faults)] : []),
  ];
}
