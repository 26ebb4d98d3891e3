import { BULK_ACTIONS, type BulkAction } from "../../../shared/domain/bulk.ts";
import { OVERLAPS, type Overlap } from "../../../shared/domain/schedule.ts";
import type { Environment, Region } from "../../../shared/domain/scope.ts";
import { type PlannedFlow, planFlowSteps, planFlows } from "./plan-flows.ts";
import { planHostSteps, planWatchedHost, type WatchedHost } from "./plan-hosts.ts";
import { Random } from "./random.ts";
import { FATES, type FaultyStatements } from "./server.ts";
import type { Crash } from "./sim-process.ts";
import { HABITS, type Habit } from "./targets.ts";

/** The operations of clients and operators. `at` is milliseconds after the beginning. */
export type Operation =
  /** `isUntold`: no message tells of the jobs, so that sweeps find them. */
  | { kind: "create"; at: number; jobs: WantedJob[]; isUntold?: boolean }
  /** `part` in [0, 1) chooses one of the jobs that were asked for before. */
  | { kind: "cancel"; at: number; part: number }
  | { kind: "retry"; at: number; part: number }
  | { kind: "pause schedule"; at: number; forMs: number; schedule: number }
  | { kind: "disable endpoint"; at: number; forMs: number; endpoint: number }
  | { kind: "hold project"; at: number; forMs: number; project: number }
  | { kind: "hold region"; at: number; forMs: number; region: number }
  | { kind: "limit host"; at: number; forMs: number; host: number; requests: number }
  /** One of the flow keys is paused for a while, or has more places. */
  | { kind: "change flow"; at: number; forMs: number; flow: number; isRaised: boolean }
  | { kind: "park host"; at: number; forMs: number; projectNo: number; host: number }
  | ({ kind: "bulk"; at: number } & WantedBulk);

/** A bulk operation of one of the projects, or of its schedule's project if it names a schedule. */
export interface WantedBulk {
  action: BulkAction;
  project: number;
  environment: Environment;
  by: "all" | "tag" | "host" | "error" | "queued" | "schedule";
  schedule: number;
  perSecond: number;
  isDry: boolean;
  /** How long after its request it is aborted; null if it is not. */
  abortsAfterMs: number | null;
}

export interface WantedJob {
  project: number;
  environment: Environment;
  region: Region;
  /** How long after its request the job is due. */
  delayMs: number;
  host: number;
  habit: Habit;
  maxAttempts: number;
  baseSeconds: number;
  capSeconds: number;
  flow?: PlannedFlow;
}

export type Fault =
  | { kind: "crash"; at: number; node: number; crash: Crash; restartsAfterMs: number | null }
  | { kind: "restart"; at: number; node: number }
  | { kind: "freeze"; at: number; node: number; forMs: number }
  | { kind: "slow down"; at: number; node: number; forMs: number; byMs: number }
  | { kind: "late timers"; at: number; node: number; forMs: number; byMs: number }
  | { kind: "cut"; at: number; node: number; forMs: number; direction: "in" | "out" }
  | { kind: "swizzle"; at: number; forMs: number }
  | { kind: "storm"; at: number; forMs: number; dropped: number; doubled: number; delayMsMax: number }
  | { kind: "statements"; at: number; forMs: number; node: number | null; what: FaultyStatements }
  | { kind: "outage"; at: number; forMs: number }
  | { kind: "host away"; at: number; forMs: number; host: number }
  | { kind: "clock leap"; at: number; byMs: number };

export type Step = Operation | Fault;

/** The decisions of a seed: the cell, its projects, and the steps. A shrunk run may leave out steps. */
export interface Plan {
  seed: number;
  workers: number;
  deliveryNodes: number;
  regions: Region[];
  projects: PlannedProject[];
  flows: PlannedFlow[];
  watched: WatchedHost | null;
  attemptsMax: number;
  perHostMax: number;
  beginsAt: number;
  /** When everything heals. In a long run a node is frozen until its attempts are given up. */
  healsAtMs: number;
  steps: Step[];
}

export interface PlannedProject {
  concurrency: number;
  plan: "scale" | "hobby";
  defaultRegion: Region;
  /** How many runs are left of the month in which the simulation begins. */
  runsLeft: number | null;
  endpoints: { environment: Environment; habit: Habit }[];
  /** For each schedule the seconds between its firings, and what these do while jobs of the schedule are not over. */
  schedules: { seconds: number; overlap: Overlap | null; spreadSeconds: number | null; habit: Habit }[];
}

const SHORT_MS = 26_000;
const LONG_MS = 80_000;
/** Steps begin after the processes have started. */
const FIRST_STEP_MS = 1_500;
const LAST_STEP_MS = 21_000;
const ORDINARY_TIME = Date.UTC(2026, 10, 14, 9, 30);
/** A month ends while the simulation runs. */
const MONTHS_END = Date.UTC(2026, 10, 30, 23, 59, 40);

export function makePlan(seed: number): Plan {
  const random = new Random(seed, "plan");
  const regions: Region[] = random.chance(0.3) ? ["us-east", "eu-central"] : ["us-east"];
  const endsMonth = random.chance(0.3);
  const [flowRandom, hostRandom] = [new Random(seed, "flow"), new Random(seed, "hosts")];
  const [workers, deliveryNodes] = [1 + random.below(3), 1 + random.below(3)];
  const projects = planProjects(random, regions, endsMonth);
  const plan = {
    ...{ seed, workers, deliveryNodes, regions, projects },
    flows: planFlows(flowRandom, projects),
    watched: planWatchedHost(hostRandom),
    attemptsMax: random.pick([4, 12, 100]),
    perHostMax: random.pick([2, 5, 100]),
    beginsAt: endsMonth ? MONTHS_END : ORDINARY_TIME,
    healsAtMs: random.chance(0.06) ? LONG_MS : SHORT_MS,
  };
  const nodes = plan.workers + plan.deliveryNodes;
  const steps: Step[] = [...planOperations(random, plan.projects, regions), ...planFaults(random, nodes)];
  if (plan.healsAtMs === LONG_MS) {
    const node = plan.workers + random.below(plan.deliveryNodes);
    steps.push({ kind: "freeze", at: stepTime(random), node, forMs: LONG_MS });
  }
  // These steps have random sources of their own, so that all other steps are as they would be without them.
  steps.push(...planBulks(new Random(seed, "bulk"), plan));
  steps.push(...planFlowSteps(flowRandom, plan, steps, stepTime));
  steps.push(...planHostSteps(hostRandom, plan, steps, stepTime));
  // The times of probes are judged by a clock that is not set.
  const possible = plan.watched === null ? steps : steps.filter(({ kind }) => kind !== "clock leap");
  return { ...plan, steps: possible.sort((one, other) => one.at - other.at) };
}

function planProjects(random: Random, regions: readonly Region[], endsMonth: boolean): PlannedProject[] {
  const endpoint = (): PlannedProject["endpoints"][number] => ({
    environment: random.chance(0.8) ? "production" : "development",
    habit: random.pick(["good", "good", "flaky", "bad", "silent", "closing"]),
  });
  return Array.from({ length: 3 }, (_, index) => {
    const isHobby = index === 2 && endsMonth;
    return {
      concurrency: random.pick([1, 2, 3, 8]),
      plan: isHobby ? ("hobby" as const) : ("scale" as const),
      defaultRegion: isHobby ? "us-east" : random.pick(regions),
      runsLeft: isHobby ? random.below(6) : null,
      endpoints: Array.from({ length: index === 0 ? 1 + random.below(2) : random.below(2) }, endpoint),
      schedules: Array.from({ length: random.below(3) }, () => ({
        // A worker looks once a second for the next firing. The API accepts no schedule of less than 30 seconds.
        seconds: random.pick([2, 3, 5]),
        overlap: random.pick([null, ...OVERLAPS]),
        spreadSeconds: random.pick([null, null, 1]),
        habit: random.pick(["good", "good", "flaky", "slow"]),
      })),
    };
  });
}

const stepTime = (random: Random) => Math.round(random.between(FIRST_STEP_MS, LAST_STEP_MS));
const lasting = (random: Random, least: number, end: number) => Math.round(random.between(least, end));

function planOperations(random: Random, projects: readonly PlannedProject[], regions: readonly Region[]) {
  const operations: Operation[] = [];
  const bursts = 4 + random.below(10);
  for (let burst = 0; burst < bursts; burst++) {
    const jobs = Array.from({ length: 1 + random.below(random.chance(0.2) ? 12 : 4) }, () =>
      planJob(random, projects, regions),
    );
    operations.push({ kind: "create", at: stepTime(random), jobs });
  }
  for (let count = random.below(4); count > 0; count--)
    operations.push({ kind: "cancel", at: stepTime(random), part: random.next() });
  for (let count = random.below(4); count > 0; count--)
    operations.push({ kind: "retry", at: stepTime(random), part: random.next() });
  const forMs = () => lasting(random, 500, 8_000);
  const maybe = (chance: number, operation: () => Operation) => {
    if (random.chance(chance)) operations.push(operation());
  };
  maybe(0.3, () => ({
    kind: "pause schedule",
    at: stepTime(random),
    forMs: forMs(),
    schedule: random.below(4),
  }));
  maybe(0.3, () => ({
    kind: "disable endpoint",
    at: stepTime(random),
    forMs: forMs(),
    endpoint: random.below(4),
  }));
  maybe(0.2, () => ({
    kind: "hold project",
    at: stepTime(random),
    forMs: forMs(),
    project: random.below(3),
  }));
  maybe(0.15, () => ({ kind: "hold region", at: stepTime(random), forMs: forMs(), region: 0 }));
  maybe(0.3, () => {
    const limit = { host: random.below(HOSTS), requests: random.below(3) };
    return { kind: "limit host", at: stepTime(random), forMs: forMs(), ...limit };
  });
  return operations;
}

/** Bulk operations, jobs or pauses that give them members, and faults of the workers that carry them out. */
function planBulks(random: Random, { workers, regions }: Pick<Plan, "workers" | "regions">): Step[] {
  if (random.chance(0.55)) return [];
  return Array.from({ length: 1 + random.below(2) }).flatMap((): Step[] => {
    const at = stepTime(random);
    const action = random.pick(BULK_ACTIONS);
    const place = {
      project: random.below(2),
      environment: random.pick(["production", "development"] as const),
    };
    const ofAction = action === "cancel" ? (["queued", "schedule"] as const) : (["error", "error"] as const);
    const bulk: Operation = {
      ...{ kind: "bulk", at, action, ...place, schedule: random.below(4) },
      by: random.pick(["all", "tag", "host", ...ofAction]),
      ...{ perSecond: random.pick([1, 5, 20, 1_000]), isDry: random.chance(0.15) },
      abortsAfterMs: random.chance(0.2) ? random.below(2_000) : null,
    };
    const [node, forMs] = [random.below(workers), lasting(random, 500, 4_000)];
    const crash = { named: "bulk", calls: 1 + random.below(4), isAfterCall: random.chance(0.6) };
    const what = { names: "bulk", chance: 0.5, fates: FATES };
    const faults: Fault[] = [
      { kind: "crash", at, node, crash, restartsAfterMs: lasting(random, 100, 3_000) },
      { kind: "statements", at, forMs, node: null, what },
    ];
    const steps: Step[] = [bulk, ...(random.chance(0.5) ? [random.pick(faults)] : [])];
    const beforeAt = Math.max(FIRST_STEP_MS, at - random.below(4_000));
    if (action === "backfill")
      return [
        ...steps,
        { kind: "pause schedule", at: beforeAt, forMs: at - beforeAt, schedule: bulk.schedule },
      ];
    const jobs = Array.from({ length: 2 + random.below(9) }, (): WantedJob => {
      const policy = { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 };
      const region = random.pick(regions);
      if (action === "retry")
        return { ...place, region, ...policy, delayMs: 0, host: random.below(HOSTS), habit: "bad" };
      const delayMs = random.below(12_000);
      return { ...place, region, ...policy, delayMs, host: random.below(HOSTS), habit: random.pick(HABITS) };
    });
    return [...steps, { kind: "create", at: beforeAt, jobs }];
  });
}

const HOSTS = 3;

/** Later than the jobs that shards remember when they hear of them. */
const BEYOND_HORIZON_MS = 66_000;

function planJob(random: Random, projects: readonly PlannedProject[], regions: readonly Region[]): WantedJob {
  const isFar = random.chance(0.03);
  const project = random.below(projects.length);
  const capSeconds = random.pick([1, 2, 4]);
  return {
    project,
    environment: random.chance(0.7) ? "production" : "development",
    region: projects[project]?.plan === "hobby" ? "us-east" : random.pick(regions),
    delayMs: random.pick([0, 0, 0, random.below(3_000), random.below(12_000), isFar ? BEYOND_HORIZON_MS : 0]),
    host: random.below(HOSTS),
    habit: random.pick(HABITS),
    maxAttempts: 1 + random.below(4),
    baseSeconds: random.pick([1, capSeconds]),
    capSeconds,
  };
}

/** Parts of statement names that a fault strikes. The empty text means all, and seldom meets the few that matter. */
const STATEMENT_KINDS = [
  "",
  "claim",
  "settle",
  "fire",
  "create",
  "shards",
  "sweep",
  "release",
  "node",
  "job",
  "run",
];

type MakeFault = (random: Random, nodes: number) => Fault;

/** Parts of the names of calls at which a process may die; an empty text for any call. */
const CALLS = ["", "", "claim", "settle", "fire", "shards", "request", "due", "answers", "hint", "release"];
function planCrash(random: Random): Crash {
  const named = random.pick(CALLS);
  return { named, calls: 1 + random.below(named === "" ? 12 : 3), isAfterCall: random.chance(0.6) };
}

const anyNode = (random: Random, nodes: number) => random.below(nodes);
const FAULTS: readonly MakeFault[] = [
  (random, nodes) => ({
    kind: "crash",
    at: stepTime(random),
    node: anyNode(random, nodes),
    crash: planCrash(random),
    restartsAfterMs: random.chance(0.2) ? null : lasting(random, 100, 6_000),
  }),
  (random, nodes) => ({ kind: "restart", at: stepTime(random), node: anyNode(random, nodes) }),
  (random, nodes) => ({
    kind: "freeze",
    at: stepTime(random),
    node: anyNode(random, nodes),
    forMs: lasting(random, 50, 12_000),
  }),
  (random, nodes) => ({
    kind: "slow down",
    at: stepTime(random),
    node: anyNode(random, nodes),
    forMs: lasting(random, 500, 6_000),
    byMs: random.pick([5, 50, 500]),
  }),
  (random, nodes) => ({
    kind: "late timers",
    at: stepTime(random),
    node: anyNode(random, nodes),
    forMs: lasting(random, 500, 10_000),
    byMs: random.pick([50, 1_000, 4_000]),
  }),
  (random, nodes) => ({
    kind: "cut",
    at: stepTime(random),
    node: anyNode(random, nodes),
    forMs: lasting(random, 200, 9_000),
    direction: random.pick(["in", "out"]),
  }),
  (random) => ({ kind: "swizzle", at: stepTime(random), forMs: lasting(random, 500, 6_000) }),
  (random) => ({
    kind: "storm",
    at: stepTime(random),
    forMs: lasting(random, 500, 10_000),
    dropped: random.pick([0, 0.1, 0.5, 1]),
    doubled: random.pick([0, 0.3]),
    delayMsMax: random.pick([0, 20, 500, 4_000]),
  }),
  (random, nodes) => ({
    kind: "statements",
    at: stepTime(random),
    forMs: lasting(random, 500, 12_000),
    node: random.chance(0.5) ? null : anyNode(random, nodes),
    what: {
      names: random.pick(STATEMENT_KINDS),
      chance: random.pick([0.2, 0.5, 1]),
      fates: random.chance(0.5) ? FATES : [random.pick(FATES)],
    },
  }),
  (random) => ({ kind: "outage", at: stepTime(random), forMs: lasting(random, 100, 6_000) }),
  (random) => ({
    kind: "clock leap",
    at: stepTime(random),
    byMs: random.pick([-3_000, -700, 400, 3_000, 20_000, -20_000]),
  }),
];
/** Each kind of fault is drawn or not, so that some seeds are all about one kind (swarm testing, Groce et al., 2012). */
function planFaults(random: Random, nodes: number): Fault[] {
  const kinds = FAULTS.filter(() => random.chance(0.45));
  if (kinds.length === 0) return [];
  return Array.from({ length: 1 + random.below(12) }, () => random.pick(kinds)(random, nodes));
}
