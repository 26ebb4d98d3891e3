import { randomBytes } from "node:crypto";
import type { Bus } from "../../shared/bus/bus.ts";
import type { AnsweredItem, Due } from "../../shared/bus/messages.ts";
import { createIdSource } from "../../shared/domain/ids.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import { type Metrics, single } from "../../shared/platform/metrics/metrics.ts";
import { repeat } from "../../shared/platform/repeat.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import { NO_TRACES, type Traces } from "../../shared/platform/traces/traces.ts";
import { createHeartbeat } from "../../shared/process/heartbeat.ts";
import { listHostLimits } from "../../shared/store/cell/host-limits.ts";
import { declareNodeDead } from "../../shared/store/cell/nodes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { InFlight, NODE_LIMITS, type NodeLimits, RequestsPerHost } from "./concurrency.ts";
import { createJobs } from "./jobs.ts";
import { openOutbound } from "./outbound.ts";
import { createPatience } from "./patience.ts";
import { createReleases, type Releases } from "./releases.ts";
import { createSigningSecrets } from "./signing-secrets.ts";
import { createSilentBusSweep } from "./silent-bus.ts";
import { createTaking, type Take } from "./taking.ts";
import { createWebhooks } from "./webhooks.ts";

export interface DeliveryOptions {
  db: Database;
  bus: Bus;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  /** None unless they are wanted. */
  traces?: Traces;
  seal: Seal;
  /** From joinCell. */
  nodeId: number;
  regions: readonly Region[];
  targets: TargetRules;
  attemptTimeoutMs: number;
  webhookTimeoutMs: number;
  /** Multiplies every wait of the webhook retries. */
  webhookRetryScale: number;
  drainTimeoutMs: number;
  limits?: NodeLimits;
  /** The node was declared dead: nothing of it may go on. */
  onDeclaredDead(): void;
}

const BEAT_EVERY_MS = 500;
const DRAIN_LOOK_MS = 20;
/** While Postgres cannot be asked the limits that were last known stand. */
const HOST_LIMITS_EVERY_MS = 2_000;

/** Takes what is due, claims it, sends it, settles it, and tells the shard. */
export async function startDelivery(options: DeliveryOptions): Promise<{ stop(): Promise<void> }> {
  const { db, bus, clock, log, metrics, nodeId, regions, seal } = options;
  const outbound = openOutbound(options.targets);
  const shutdown = new AbortController();
  const limits = options.limits ?? NODE_LIMITS;
  /** One that is heard of twice is claimed once. */
  const inFlight = new InFlight(limits);
  const hosts = new RequestsPerHost(limits);
  let isDraining = false;
  metrics.attemptsInFlight.follow(() => single(inFlight.size));
  const room = () => (isDraining ? 0 : inFlight.room);
  /** A node that cannot reach Postgres claims nothing: what it were handed would be late. */
  let isReached = true;
  const roomOffered = () => (isReached ? Math.max(0, room()) : 0);
  const sendBeat = () => bus.sendBeat("delivery", { nodeId, regions: [...regions], room: roomOffered() });

  const patience = createPatience(log, () => inFlight.size);
  const traces = options.traces ?? NO_TRACES;
  const common = { db, bus, log, metrics, traces, nodeId, ids: createIdSource(randomBytes), patience };
  const way = { outbound, clock, shutdown: shutdown.signal };
  const { attemptTimeoutMs, webhookTimeoutMs: timeoutMs, webhookRetryScale: scale } = options;
  const take: Take = createTaking({
    jobs: createJobs({
      ...common,
      secretsOf: createSigningSecrets(db, seal),
      sender: { ...way, attemptTimeoutMs },
    }),
    webhooks: createWebhooks({ ...common, seal, sender: { ...way, timeoutMs, scale } }),
    inFlight,
    hosts,
    room,
    patience,
    clock,
    log,
    onRoom: sendBeat,
    onParked: (host) => releases.parked(host),
    onFreed: (host) => releases.freed(host),
    onDeclaredDead: options.onDeclaredDead,
  });

  const releases: Releases = createReleases({ db, bus, regions, hosts, room, take, patience });

  async function takeAll({ worker, region, items }: Due): Promise<void> {
    const answers: AnsweredItem[] = [];
    await Promise.all(
      items.map(async (item) => {
        const { projectNo, shard, id, attempt } = item;
        const answer = await take(region, item);
        if (answer !== null) answers.push({ projectNo, shard, id, attempt, answer });
      }),
    );
    if (answers.length > 0)
      bus.sendAnswers(worker, { delivery: nodeId, region, room: roomOffered(), items: answers });
  }

  const heartbeat = createHeartbeat(options);
  async function beat(): Promise<void> {
    sendBeat();
    try {
      await heartbeat();
      isReached = true;
    } catch (error) {
      isReached = false;
      throw error;
    }
  }

  const readHostLimits = async () => hosts.lower(await listHostLimits(db));
  // Nothing is sent by a node that does not know them.
  await patience.untilAnswered(readHostLimits);

  const silentBus = createSilentBusSweep({ db, regions, room, take });
  const subscriptions = [
    bus.onDue(nodeId, (due) => void takeAll(due)),
    bus.onBeat("worker", (heard) => silentBus.heardWorker(heard.regions)),
  ];
  const sweeping = repeat("silent-bus", silentBus.everyMs, silentBus.tick, log);
  const loops = [
    repeat("beat", BEAT_EVERY_MS, beat, log),
    sweeping,
    repeat("releases", releases.everyMs, releases.tick, log),
    repeat("host-limits", HOST_LIMITS_EVERY_MS, readHostLimits, log),
  ];

  return {
    async stop() {
      isDraining = true;
      sendBeat();
      await sweeping.stop();
      const abortAt = performance.now() + options.drainTimeoutMs;
      while (inFlight.size > 0 && performance.now() < abortAt) await Bun.sleep(DRAIN_LOOK_MS);
      shutdown.abort();
      while (inFlight.size > 0) await Bun.sleep(DRAIN_LOOK_MS);
      // Until here workers that had not heard of the drain were told to turn to another node.
      for (const subscription of subscriptions) subscription.unsubscribe();
      await Promise.all(loops.map((loop) => loop.stop()));
      await outbound.close();
      // Nothing of this node is on the wire any more, so its name is free at once.
      await declareNodeDead(db, nodeId);
    },
  };
}
