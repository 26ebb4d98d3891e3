import { startDelivery } from "../../../services/delivery/start.ts";
import { startWorker } from "../../../services/worker/start.ts";
import type { Region } from "../../../shared/domain/scope.ts";
import { startClock } from "../../../shared/platform/clock.ts";
import type { ProcessLog } from "../../../shared/platform/log.ts";
import { createMetrics } from "../../../shared/platform/metrics/metrics.ts";
import { loops } from "../../../shared/platform/repeat.ts";
import type { Seal } from "../../../shared/platform/seal/seal.ts";
import { NO_TRACES } from "../../../shared/platform/traces/traces.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import { joinCell } from "../../../shared/store/cell/membership.ts";
import type { NodeKind } from "../../../shared/store/cell/nodes.ts";
import { askTime } from "../../../shared/store/database/database.ts";
import type { Network } from "./network.ts";
import type { PlannedFlow } from "./plan-flows.ts";
import type { Recording } from "./recording.ts";
import type { Server } from "./server.ts";
import { SimProcess } from "./sim-process.ts";
import type { Targets } from "./targets.ts";
import type { Timeline } from "./timeline.ts";

export const LEASE_TTL_MS = 5_000;
export const ATTEMPT_TIMEOUT_MS = 4_000;
export const WEBHOOK_TIMEOUT_MS = 3_000;
/** The 48 hours of an endpoint become 35 s, and the waits between its attempts at most 10 s. */
export const WEBHOOK_SCALE = 0.0002;
export const SHARDS_PER_REGION = 3;
const DRAIN_TIMEOUT_MS = 1_000;
const SUPERVISOR_WAITS_MS = 500;

export interface NodePlace {
  kind: NodeKind;
  name: string;
  /** Processes on one machine see each other's death. */
  machine: string;
}

export interface World {
  timeline: Timeline;
  server: Server;
  network: Network;
  targets: Targets;
  recording: Recording;
  seed: number;
  regions: readonly Region[];
  flows: readonly PlannedFlow[];
  limits: { attemptsMax: number; perHostMax: number };
}

/** A seal that leaves texts as they are: other tests check the sealing. */
export const OPEN_SEAL: Seal = {
  seal: (text) => Buffer.from(text),
  open: (sealed) => sealed.toString(),
  findKey: () => null,
  deriveKeys: () => [new Uint8Array(32)],
  fingerprints: ["simulated"],
};

/** A worker or a delivery node under a supervisor, which starts a new process of its name when one has ended. */
export class SupervisedNode {
  process: SimProcess;
  private running: { stop(): Promise<void> } | null = null;
  private lives = 0;
  /** Milliseconds from a death to the next life; null if the next life begins when everything heals. */
  restartsAfterMs: number | null = SUPERVISOR_WAITS_MS;

  constructor(
    readonly place: NodePlace,
    private readonly world: World,
    /** The processes of all nodes by their descriptions. */
    private readonly known: Map<string, { machine: string; process: SimProcess }>,
  ) {
    this.process = this.begin();
  }

  /** Starts a process if none lives. */
  restart(): void {
    if (this.process.state === "gone") this.process = this.begin();
  }

  /** Stops the process as its supervisor does for an upgrade, and starts the next one. */
  stop(): void {
    const { process, running } = this;
    if (process.state !== "running" || running === null) return;
    this.world.timeline.in(0, process, () => {
      running.stop().then(
        () => process.die(),
        () => process.die(),
      );
    });
  }

  private begin(): SimProcess {
    const { timeline, seed, recording } = this.world;
    const description = `${this.place.name}#${++this.lives}`;
    this.running = null;
    const process = new SimProcess(this.place.name, timeline, seed + this.lives * 1_000_003, () => {
      recording.trace(() => `${description} is dead`);
      if (this.restartsAfterMs !== null) timeline.in(this.restartsAfterMs, null, () => this.restart());
      this.restartsAfterMs = SUPERVISOR_WAITS_MS;
    });
    this.known.set(description, { machine: this.place.machine, process });
    timeline.in(0, process, () => {
      recording.trace(() => `${description} begins`);
      // A process that fails to start ends, as the product's does.
      this.start(process, description).then(
        (running) => {
          if (this.process === process) this.running = running;
        },
        (error) => {
          recording.trace(() => `${description} did not start: ${error}`);
          process.die();
        },
      );
    });
    return process;
  }

  private async start(process: SimProcess, description: string): Promise<{ stop(): Promise<void> }> {
    const { regions } = this.world;
    const cell = await openCell(process, this.world);
    const isProvedDead = (other: string) => {
      const found = this.known.get(other);
      return found?.machine === this.place.machine && found.process.state === "gone";
    };
    const node = { kind: this.place.kind, name: this.place.name, regions, process: description };
    const nodeId = await joinCell(cell.db, node, { leaseMs: LEASE_TTL_MS, isProvedDead });
    // A real process counts its loops from 0.
    loops.count = process.random.below(1_000);
    const common = { nodeId, regions, onDeclaredDead: () => process.die(), ids: process.ids };
    const times = {
      attemptTimeoutMs: ATTEMPT_TIMEOUT_MS,
      webhookTimeoutMs: WEBHOOK_TIMEOUT_MS,
      webhookRetryScale: WEBHOOK_SCALE,
    };
    return this.place.kind === "worker"
      ? startWorker(cell, {
          ...common,
          ...times,
          isProvedDead,
          shardsPerRegion: SHARDS_PER_REGION,
          leaseTtlMs: LEASE_TTL_MS,
        })
      : startDelivery(cell, {
          ...common,
          ...times,
          seal: OPEN_SEAL,
          targets: { allowInsecure: true, own: [] },
          drainTimeoutMs: DRAIN_TIMEOUT_MS,
          limits: this.world.limits,
          outbound: this.world.targets.outboundOf(process),
        });
  }
}

/** The metrics are never read, so one set serves all processes. */
const METRICS = createMetrics();

/** The simulated cell as one process sees it. */
export async function openCell(process: SimProcess, { server, network, recording }: World): Promise<Cell> {
  const db = server.connect(process);
  const log = logOf(process, recording);
  const clock = await startClock(() => askTime(db));
  return { db, bus: network.openBus(process, log), clock, log, metrics: METRICS, traces: NO_TRACES };
}

function logOf(process: SimProcess, recording: Recording): ProcessLog {
  const write = (level: string) => (fields: object, message: string) => {
    if (process.state === "gone") return;
    recording.meet(`log: ${message}`);
    recording.trace(() => `${process.name} ${level} ${message} ${JSON.stringify(fields, textOfErrors)}`);
  };
  return {
    debug: write("debug"),
    info: write("info"),
    warn: write("warn"),
    error: write("error"),
    together: (act) => act(),
  };
}

const textOfErrors = (_key: string, value: unknown) => (value instanceof Error ? value.message : value);
