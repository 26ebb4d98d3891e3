import type { FlowHold, FlowRate } from "../../../shared/domain/flow-key.ts";
import type { Environment } from "../../../shared/domain/scope.ts";
import type { Fault, Operation, Plan, PlannedProject, Step, WantedJob } from "./plan.ts";
import type { Random } from "./random.ts";
import { FATES } from "./server.ts";
import { HABITS } from "./targets.ts";

/** A flow key with its limits. Jobs carry the limits, unless the key is pinned. */
export interface PlannedFlow {
  projectNo: number;
  environment: Environment;
  key: string;
  hold: FlowHold;
  concurrency: number | null;
  rate: FlowRate | null;
  isPinned: boolean;
  /** Whether the jobs of the project's schedules have it as well. */
  isOfSchedules: boolean;
}

const KINDS: readonly Pick<PlannedFlow, "hold" | "concurrency" | "rate">[] = [
  { hold: "attempt", concurrency: 1, rate: null },
  { hold: "attempt", concurrency: 2, rate: null },
  { hold: "attempt", concurrency: 1, rate: null },
  { hold: "job", concurrency: 1, rate: null },
  { hold: "job", concurrency: 2, rate: null },
  { hold: "attempt", concurrency: null, rate: { count: 3, per_seconds: 2 } },
  { hold: "job", concurrency: 2, rate: { count: 2, per_seconds: 1 } },
];
const FLOWS_MAX = 2;
/** Parts of the names of calls at which a process dies or which fail, so that faults meet the gates of keys. */
const CALLS = ["keyed", "whole", "gate_calls", "flowing"] as const;

/** The flow keys of a cell; half of the cells have none. */
export function planFlows(random: Random, projects: readonly PlannedProject[]): PlannedFlow[] {
  if (random.chance(0.5)) return [];
  // The keys of a project with few permits would keep nothing back, so the project with the most gets them.
  const [most] = [...projects.keys()].sort(
    (one, other) => (projects[other]?.concurrency ?? 0) - (projects[one]?.concurrency ?? 0),
  );
  return Array.from({ length: 1 + random.below(FLOWS_MAX) }, (_, index) => {
    const kind = random.pick(KINDS);
    const place = { projectNo: (most ?? 0) + 1, environment: "production" as const, key: `key-${index}` };
    const isPinned = kind.concurrency !== null && random.chance(0.25);
    return { ...place, ...kind, isPinned, isOfSchedules: index === 0 && random.chance(0.3) };
  });
}

/** Gives most jobs of the keys' projects a key. Returns further steps: more jobs, changes of keys, and faults. */
export function planFlowSteps(
  random: Random,
  { flows, workers, deliveryNodes, projects }: Pick<Plan, "flows" | "workers" | "deliveryNodes" | "projects">,
  steps: readonly Step[],
  timeOf: (random: Random) => number,
): Step[] {
  if (flows.length === 0) return [];
  const jobs = steps.flatMap((step) => (step.kind === "create" ? step.jobs : []));
  for (const job of jobs) {
    const own = flows.filter(
      (flow) =>
        flow.projectNo === job.project + 1 &&
        flow.environment === job.environment &&
        // A region in which nothing starts is passed over, so order is judged in one region only.
        (!isStrict(flow) || job.region === projects[job.project]?.defaultRegion),
    );
    if (own.length > 0 && random.chance(0.8)) job.flow = random.pick(own);
  }
  const nodes = workers + deliveryNodes;
  return flows.flatMap((flow, index): Step[] => {
    const at = timeOf(random);
    const burst: Operation = {
      ...{ kind: "create", at },
      jobs: Array.from({ length: 2 + random.below(5) }, () => jobOf(random, flow, projects)),
    };
    const forMs = 500 + random.below(4_000);
    const change: Operation = {
      ...{ kind: "change flow", at: timeOf(random), forMs, flow: index },
      isRaised: flow.isPinned && random.chance(0.6),
    };
    const named = random.pick(CALLS);
    const node = random.below(nodes);
    const crash = { named, calls: 1 + random.below(4), isAfterCall: random.chance(0.6) };
    const faults: Fault[] = [
      { kind: "crash", at, node, crash, restartsAfterMs: 100 + random.below(3_000) },
      { kind: "statements", at, forMs, node: null, what: { names: named, chance: 0.5, fates: FATES } },
    ];
    return [
      burst,
      ...(random.chance(0.4) ? [change] : []),
      ...(random.chance(0.5) ? [random.pick(faults)] : []),
      ...(random.chance(0.5) ? planQueue(random, flow, projects, timeOf(random)) : []),
    ];
  });
}

/**
 * So many good jobs of the key that its places are handed on, while statements that do so fail. Sweeps find them, in two waves: the second
 * comes while the project is known to hand places on.
 */
function planQueue(
  random: Random,
  flow: PlannedFlow,
  projects: readonly PlannedProject[],
  at: number,
): Step[] {
  const wave = (length: number) =>
    Array.from(
      { length },
      (): WantedJob => ({ ...jobOf(random, flow, projects), delayMs: 0, habit: "good" }),
    );
  const fates = random.chance(0.5) ? FATES : (["answer lost"] as const);
  const what = { names: "settle_keyed", chance: 0.3, fates };
  const faults: Fault[] = [{ kind: "statements", at, forMs: 5_000, node: null, what }];
  const isUntold = random.chance(0.7);
  return [
    { kind: "create", at, jobs: wave(8 + random.below(8)), isUntold },
    { kind: "create", at: at + 500 + random.below(1_000), jobs: wave(4 + random.below(20)), isUntold },
    ...faults.filter(() => random.chance(0.8)),
  ];
}

const isStrict = ({ hold, concurrency }: PlannedFlow) => hold === "job" && concurrency === 1;

function jobOf(random: Random, flow: PlannedFlow, projects: readonly PlannedProject[]): WantedJob {
  const { projectNo, environment } = flow;
  const region = projects[projectNo - 1]?.defaultRegion ?? "us-east";
  return {
    ...{ project: projectNo - 1, environment, region, flow },
    delayMs: random.pick([0, 0, random.below(3_000)]),
    host: random.below(3),
    habit: random.pick(["good", "good", "flaky", ...HABITS]),
    ...{ maxAttempts: 1 + random.below(3), baseSeconds: 1, capSeconds: 1 },
  };
}
