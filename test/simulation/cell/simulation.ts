import type { OutboundRequest } from "../../../services/delivery/outbound.ts";
import { RESCUE_GRACE_MS } from "../../../services/worker/duties/rescue.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { LEAP_MS } from "../../../shared/store/database/clock-watch.ts";
import { STATEMENT_TIMEOUT_MS } from "../../../shared/store/database/database.ts";
import type { FinalState, History } from "../../support/history/history.ts";
import { Clients } from "./clients.ts";
import { Faults } from "./faults.ts";
import { readFinalState } from "./final-state.ts";
import { firstRows } from "./first-rows.ts";
import { withSimulatedGlobals } from "./globals.ts";
import { Network } from "./network.ts";
import {
  ATTEMPT_TIMEOUT_MS,
  LEASE_TTL_MS,
  type NodePlace,
  SupervisedNode,
  WEBHOOK_TIMEOUT_MS,
  type World,
} from "./nodes.ts";
import type { Operation, Plan, Step } from "./plan.ts";
import type { PlannedFlow } from "./plan-flows.ts";
import { Random } from "./random.ts";
import { Recording } from "./recording.ts";
import { Server } from "./server.ts";
import { SimProcess } from "./sim-process.ts";
import type { Tables } from "./store/tables.ts";
import { Targets } from "./targets.ts";
import { Timeline } from "./timeline.ts";
import { watchStatements } from "./watch.ts";

export interface Outcome {
  history: History;
  /** How often each rare path was met. */
  counts: ReadonlyMap<string, number>;
  /** The trace of the run, line by line; empty unless it was asked for. */
  trace: readonly string[];
  /** For how long the cell was simulated. */
  simulatedMs: number;
}

/** A dead node's work is taken over within the lease and 5 s; then it takes some sweeps until all has started. */
const TAKEOVER_MS = LEASE_TTL_MS + 5_000;
/** An attempt of a node that is not proved dead is given up after its deadline and the grace, by a steady clock. */
const DRAINS_WITHIN_MS = 60_000 + ATTEMPT_TIMEOUT_MS + 2 * RESCUE_GRACE_MS;
/**
 * The time for a takeover, and for a backlog of which a project may send one at a time. Before the backlog there may be
 * an attempt that is never sent: its claim took effect after a later claim had refused it to its node. That attempt
 * keeps its permit until it is given up.
 */
const CATCHES_UP_WITHIN_MS = TAKEOVER_MS + 10_000 + ATTEMPT_TIMEOUT_MS + RESCUE_GRACE_MS;
const STARTS_WITHIN_MS = 1_500;
const LOOK_EVERY_MS = 500;
const QUIET_MS = 5_000;
const LAST_JOBS_MS = 2_500;
const QUIET_JOBS = 8;

/** Runs one simulated cell from its beginning to its end. `steps` may be fewer than those of the plan. */
export function simulate(plan: Plan, steps: readonly Step[] = plan.steps, isTraced = false): Outcome {
  const timeline = new Timeline();
  try {
    return withSimulatedGlobals(timeline, () => new Simulation(plan, timeline, isTraced).run(steps));
  } catch (cause) {
    throw new Error(`seed ${plan.seed} ended at ${timeline.now} ms`, { cause });
  }
}

class Simulation {
  private readonly recording: Recording;
  private readonly tables: Tables;
  private readonly world: World;
  private readonly nodes: SupervisedNode[];
  private readonly faults: Faults;
  private readonly clients: Clients;
  private readonly gateway: SimProcess;

  constructor(
    private readonly plan: Plan,
    private readonly timeline: Timeline,
    isTraced: boolean,
  ) {
    const { seed, regions, attemptsMax, perHostMax } = plan;
    const flows = [...plan.flows, quietFlowOf(plan)];
    const recording = new Recording(timeline, isTraced);
    const tables = firstRows(plan, new Random(seed, "rows"));
    const server = new Server(
      timeline,
      recording,
      tables,
      plan.beginsAt,
      watchStatements(timeline, recording),
    );
    const network = new Network(timeline, recording);
    const random = new Random(seed, "targets");
    const describe = (request: OutboundRequest) => describeRequest(tables, request);
    const targets = new Targets(timeline, recording, random, () => server.readClock(), describe);
    const limits = { attemptsMax, perHostMax };
    this.recording = recording;
    this.tables = tables;
    this.world = { timeline, server, network, targets, recording, seed, regions, flows, limits };
    const known = new Map<string, { machine: string; process: SimProcess }>();
    this.nodes = placesOf(plan).map((place) => new SupervisedNode(place, this.world, known));
    this.faults = new Faults(
      timeline,
      recording,
      server,
      network,
      targets,
      this.nodes,
      new Random(seed, "faults"),
    );
    this.gateway = new SimProcess("gateway", timeline, seed, () => undefined);
    timeline.current = this.gateway;
    this.clients = new Clients(this.gateway, this.world, tables);
    this.clients.noteFlows();
    timeline.current = null;
  }

  run(steps: readonly Step[]): Outcome {
    const { timeline, plan } = this;
    for (const step of steps) this.take(step);
    timeline.run(plan.healsAtMs);
    this.faults.heal();
    this.world.targets.isHealed = true;
    for (const [id, row] of this.tables.webhooks)
      if (row.url.endsWith("/bad")) this.ask((clients, cell) => clients.setEndpoint(cell, id, false));
    const drained = this.settle(DRAINS_WITHIN_MS);
    timeline.run(Math.max(timeline.now, plan.healsAtMs + TAKEOVER_MS));
    const quietFrom = timeline.now;
    this.askForQuietJobs();
    timeline.run(quietFrom + QUIET_MS);
    for (const id of this.tables.schedules.keys())
      this.ask((clients, cell) => clients.setSchedule(cell, id, false));
    timeline.run(timeline.now + LAST_JOBS_MS);
    const isDrained = drained && this.settle(DRAINS_WITHIN_MS);
    return this.outcome(quietFrom, isDrained);
  }

  private outcome(quietFrom: number, isDrained: boolean): Outcome {
    const { recording, tables, plan } = this;
    const flows = [...tables.flows.values()];
    const limits = new Map(flows.map(({ project_no, concurrency }) => [project_no, concurrency]));
    const terms = {
      limits,
      withQuota: new Set(flows.flatMap((flow) => (flow.month_runs_max === null ? [] : [flow.project_no]))),
      attemptTimeoutMs: ATTEMPT_TIMEOUT_MS,
      webhookTimeoutMs: WEBHOOK_TIMEOUT_MS,
      graceMs: graceOf(plan),
      healedAt: plan.healsAtMs,
      catchesUpWithinMs: CATCHES_UP_WITHIN_MS,
      quietFrom,
      startsWithinMs: STARTS_WITHIN_MS,
      toleranceMs: toleranceOf(plan),
      statementWaitsMs: STATEMENT_TIMEOUT_MS,
      isDrained,
    };
    const final = readFinalState(tables, plan.beginsAt, this.world.server.readClock().latestAt);
    return {
      history: { terms, events: recording.events, final: withHosts(final, recording) },
      counts: recording.counts,
      trace: recording.lines,
      simulatedMs: this.timeline.now,
    };
  }

  private take(step: Step): void {
    this.timeline.in(step.at, null, () => {
      if (isOperation(step)) this.perform(step);
      else this.faults.begin(step);
    });
  }

  private perform(operation: Operation): void {
    this.recording.meet(`operation: ${operation.kind}`);
    this.recording.trace(() => `! ${JSON.stringify(operation)}`);
    this.timeline.in(0, this.gateway, () => void this.clients.perform(operation));
  }

  private ask(act: (clients: Clients, cell: Awaited<Clients["cell"]>) => Promise<void>): void {
    this.timeline.in(0, this.gateway, () => void this.clients.cell.then((cell) => act(this.clients, cell)));
  }

  /** Lets time pass until nothing is owed. False if the time is over before. */
  private settle(withinMs: number): boolean {
    const endAt = this.timeline.now + withinMs;
    while (!this.isSettled() && this.timeline.now < endAt)
      this.timeline.run(Math.min(endAt, this.timeline.now + LOOK_EVERY_MS));
    return this.isSettled();
  }

  /** Whether nothing is owed. While a schedule is active, jobs of schedules and deliveries do not count. */
  private isSettled(): boolean {
    const { tables } = this;
    const active = [...tables.schedules.values()].some(({ paused }) => !paused);
    for (const { ended_at } of tables.bulk_operations.values()) if (ended_at === null) return false;
    if (!active && tables.gate_calls.length > 0) return false;
    for (const row of tables.open_jobs.values())
      if (!active || tables.jobs.get(row.id)?.schedule_id === null) return false;
    return active || tables.open_deliveries.size === 0;
  }

  private askForQuietJobs(): void {
    const project = this.plan.projects.length;
    for (let index = 0; index < QUIET_JOBS; index++) {
      const job = {
        project,
        environment: "production",
        region: this.plan.regions[index % this.plan.regions.length],
      };
      const terms = { host: 5, habit: "good", maxAttempts: 1, baseSeconds: 1, capSeconds: 1 };
      const delayMs = index % 2 === 0 ? 0 : 1_000 + 200 * index;
      const flow = index % 4 === 1 ? { flow: quietFlowOf(this.plan) } : {};
      const operation = {
        kind: "create",
        at: 0,
        jobs: [{ ...job, ...terms, ...flow, delayMs }],
      } as Operation;
      this.timeline.in(index * 250, null, () => this.perform(operation));
    }
  }
}

/** A key for quiet times, so that nothing from before stands in its way. */
const quietFlowOf = ({ projects }: Plan): PlannedFlow => ({
  ...{ projectNo: projects.length + 1, environment: "production", key: "quiet", hold: "attempt" },
  ...{ concurrency: 1, rate: null, isPinned: false, isOfSchedules: false },
});

/** Adds the times when hosts were down. A run that only a full host has held was not held by one that was down. */
const withHosts = (final: FinalState, recording: Recording): FinalState => ({
  ...final,
  downTimes: recording.downTimes(),
  runs: final.runs.map((run) => (recording.keptByHost.has(run.job) ? run : { ...run, heldFor: null })),
});

const OPERATIONS: ReadonlySet<string> = new Set<Operation["kind"]>([
  "create",
  "cancel",
  "retry",
  "pause schedule",
  "disable endpoint",
  "hold project",
  "hold region",
  "limit host",
  "change flow",
  "park host",
  "bulk",
]);
const isOperation = (step: Step): step is Operation => OPERATIONS.has(step.kind);

/** The places of the nodes, on two machines. A process sees the death of others on its machine. */
function placesOf({ workers, deliveryNodes }: Plan): NodePlace[] {
  const places = (kind: NodePlace["kind"], count: number): NodePlace[] =>
    Array.from({ length: count }, (_, index) => ({
      kind,
      name: `${kind}-${index}`,
      machine: index % 2 === 0 ? "left" : "right",
    }));
  return [...places("worker", workers), ...places("delivery", deliveryNodes)];
}

const leapsOf = ({ steps }: Plan): number[] =>
  steps.flatMap((step) => (step.kind === "clock leap" ? [step.byMs] : []));

/** The grace is measured by the database's clock. The watch of that clock does not notice a small leap. */
function graceOf(plan: Plan): number {
  const unnoticed = leapsOf(plan).filter((ms) => ms > 0 && ms < LEAP_MS);
  return RESCUE_GRACE_MS - unnoticed.reduce((sum, ms) => sum + ms, 0);
}

/** Clocks of nodes differ from the database's by a round trip, or by a leap that they have not measured yet. */
function toleranceOf(plan: Plan): number {
  return 100 + leapsOf(plan).reduce((sum, ms) => sum + Math.abs(ms), 0);
}

/** Describes a request as its target sees it: by its headers alone. The project follows from the rows. */
function describeRequest(tables: Tables, { headers, url }: OutboundRequest) {
  const job = headers["service-job-id"];
  const run = headers["webhook-id"] ?? "";
  if (job !== undefined) {
    const row = tables.jobs.get(idToUuid(job));
    const attempt = Number(headers["service-attempt"]);
    return { what: "job" as const, project: row?.project_no ?? 0, id: job, run, attempt };
  }
  const event = tables.events.get(idToUuid(run));
  return {
    what: "delivery" as const,
    project: event?.project_no ?? 0,
    id: `${run} ${url}`,
    run,
    attempt: null,
  };
}
