import { randomBytes } from "node:crypto";
import { sendHints } from "../../shared/bus/hints.ts";
import { type AnsweredItem, type Due, NO_WORKER } from "../../shared/bus/messages.ts";
import { createIdSource, type IdSource } from "../../shared/domain/ids.ts";
import type { BegunAttempt, OwedAttempt, Placed } from "../../shared/domain/owed.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import { single } from "../../shared/platform/metrics/metrics.ts";
import { repeat } from "../../shared/platform/repeat.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { createHeartbeat } from "../../shared/process/heartbeat.ts";
import { listHostLimits } from "../../shared/store/cell/host-limits.ts";
import { declareNodeDead } from "../../shared/store/cell/nodes.ts";
import { type ClaimAndSend, createClaimAndSend } from "./claim-and-send.ts";
import { InFlight, NODE_LIMITS, type NodeLimits, RequestsPerHost } from "./concurrency.ts";
import { createDeliveryAttempts } from "./delivery-attempts.ts";
import { createGateCalls } from "./gate-calls.ts";
import { createJobAttempts } from "./job-attempts.ts";
import { type Outbound, openOutbound } from "./outbound.ts";
import { createReleases, type Releases } from "./releases.ts";
import { createStoreRetries } from "./retry-until-answered.ts";
import { createSigningSecrets } from "./signing-secrets.ts";
import { createSilentBusSweep } from "./silent-bus.ts";

export interface DeliveryOptions {
  seal: Seal;
  /** The id that joinCell has given. */
  nodeId: number;
  regions: readonly Region[];
  targets: TargetRules;
  attemptTimeoutMs: number;
  webhookTimeoutMs: number;
  /** Multiplies every wait of the webhook retries. */
  webhookRetryScale: number;
  drainTimeoutMs: number;
  limits?: NodeLimits;
  /** A simulation gives both of these, in place of the network and of random ids. */
  outbound?: Outbound;
  ids?: IdSource;
  /** The node was declared dead, so all its work must stop. */
  onDeclaredDead(): void;
}

const BEAT_EVERY_MS = 500;
const DRAIN_LOOK_MS = 20;
/** While Postgres cannot be asked, the limits that were last known stand. */
const HOST_LIMITS_EVERY_MS = 2_000;

export interface Delivery {
  stop(): Promise<void>;
  /** The calls that a test clock needs to walk on. */
  walk: {
    /** Finds parked attempts and calls gates. False if that has failed. */
    look(): Promise<boolean>;
    /** Whether nothing is being claimed, on the wire or being settled. */
    isIdle(): boolean;
    /** The clock was put ahead. */
    leapt(): void;
  };
}

/** Takes due attempts, claims, sends and settles them, and tells their shards. */
export async function startDelivery(cell: Cell, options: DeliveryOptions): Promise<Delivery> {
  const { db, bus, clock, log, metrics } = cell;
  const { nodeId, regions, seal, limits = NODE_LIMITS, ids = createIdSource(randomBytes) } = options;
  const outbound = options.outbound ?? openOutbound(options.targets);
  const shutdown = new AbortController();
  const inFlight = new InFlight(limits);
  const hosts = new RequestsPerHost(limits);
  let isDraining = false;
  metrics.attemptsInFlight.follow(() => single(inFlight.size));
  const granted = new Map(regions.map((region) => [region, metrics.granted("jobs", region)]));
  const room = () => (isDraining ? 0 : inFlight.room);
  /** A node that cannot reach Postgres can claim nothing, so it offers no room: attempts handed to it would be late. */
  let isReached = true;
  const roomOffered = () => (isReached ? Math.max(0, room()) : 0);
  const sendBeat = () => bus.sendBeat("delivery", { nodeId, regions: [...regions], room: roomOffered() });

  const retries = createStoreRetries(log, () => inFlight.size);
  const common = { nodeId, ids, retries };
  const way = { outbound, clock, shutdown: shutdown.signal };
  // Under a test clock a secret may expire with the next leap.
  const secrets = createSigningSecrets(db, seal, { regions, ...(clock.real && { cachedMs: 0 }) });
  const claimAndSend: ClaimAndSend = createClaimAndSend(cell, {
    jobs: createJobAttempts(cell, {
      ...common,
      secretsOf: secrets.of,
      sender: { ...way, timeoutMs: options.attemptTimeoutMs },
    }),
    webhooks: createDeliveryAttempts(cell, {
      ...common,
      seal,
      sender: { ...way, timeoutMs: options.webhookTimeoutMs, scale: options.webhookRetryScale },
    }),
    inFlight,
    hosts,
    room,
    retries,
    onNext(item, wasQueued) {
      granted.get(item.region)?.(0, false);
      if (wasQueued && begun.push(item) === 1) setImmediate(hintAtBegun);
    },
    onRoom: sendBeat,
    onParked: (host) => releases.parked(host),
    onFreed: (host) => releases.freed(host),
    onDeclaredDead: options.onDeclaredDead,
  });

  const releases: Releases = createReleases(cell, { regions, hosts, room, claimAndSend, retries });

  /** The answers to each worker about each region that this turn of the event loop has brought. They go together. */
  let answers = new Map<string, { workerNodeId: number; region: Region; items: AnsweredItem[] }>();
  function handle({ workerNodeId, region, items }: Due): void {
    for (const item of items) {
      void claimAndSend(region, item).then((answer) => {
        if (answer === null) return;
        if (answers.size === 0) setImmediate(sendAnswers);
        const { projectNo, shard, id, attempt } = item;
        const key = `${workerNodeId} ${region}`;
        const known = answers.get(key) ?? { workerNodeId, region, items: [] };
        known.items.push({ projectNo, shard, id, attempt, answer });
        answers.set(key, known);
      });
    }
  }
  function sendAnswers(): void {
    for (const { workerNodeId, region, items } of answers.values())
      bus.sendAnswers(workerNodeId, { deliveryNodeId: nodeId, region, room: roomOffered(), items });
    answers = new Map();
  }

  let left: Placed<OwedAttempt>[] = [];
  /** Jobs that a gateway has created. It waits for no answers, so the shards hear of what is still owed. */
  function handleCreated({ region, items }: Due): void {
    for (const item of items) {
      void claimAndSend(region, item).then((answer) => {
        if (answer?.kind === "granted") granted.get(region)?.(clock.now() - item.dueAt, false);
        else if (answer?.kind !== "gone" && left.push({ ...item, region }) === 1) setImmediate(hintAtLeft);
      });
    }
  }
  function hintAtLeft(): void {
    sendHints(bus, { owed: left, freed: [] });
    left = [];
  }

  let begun: Placed<BegunAttempt>[] = [];
  function hintAtBegun(): void {
    sendHints(bus, { owed: [], freed: [], begun });
    begun = [];
  }

  const heartbeat = createHeartbeat(cell, options);
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
  // The node begins only once it knows the limits.
  await retries.untilAnswered(readHostLimits);

  const gateCalls = createGateCalls(cell);
  const silentBus = createSilentBusSweep({ db, regions, room, claimAndSend });
  const subscriptions = [
    bus.onDue(nodeId, (due) => {
      if (due.workerNodeId === NO_WORKER) handleCreated(due);
      else handle(due);
    }),
    bus.onBeat("worker", (heard) => silentBus.heardWorker(heard.regions)),
  ];
  const beating = repeat("beat", BEAT_EVERY_MS, beat, log);
  const sweeping = repeat("silent-bus", silentBus.everyMs, silentBus.tick, log);
  const releasing = repeat("releases", releases.everyMs, releases.tick, log);
  const callingGates = repeat("gate-calls", gateCalls.everyMs, gateCalls.tick, log);
  const limiting = repeat("host-limits", HOST_LIMITS_EVERY_MS, readHostLimits, log);
  const refreshing = repeat("signing-secrets", secrets.everyMs, secrets.refresh, log);
  const loops = [beating, sweeping, releasing, callingGates, limiting, refreshing];

  return {
    async stop() {
      // The loops claim nothing from here on. They end later, because a claim under way waits for Postgres to answer.
      isDraining = true;
      sendBeat();
      const abortAt = performance.now() + options.drainTimeoutMs;
      // An idle node stays for a moment, too, and refuses what others sent before they heard of the drain.
      do await Bun.sleep(DRAIN_LOOK_MS);
      while (inFlight.size > 0 && performance.now() < abortAt);
      shutdown.abort();
      // An outage of Postgres may outlast this. Then the process ends in the middle of it (platform/shutdown.ts), and what
      // it could not settle ends as an attempt of a dead node does.
      while (inFlight.size > 0) await Bun.sleep(DRAIN_LOOK_MS);
      // Until here the node answers workers that have not heard of the drain, so that they turn to another one.
      for (const subscription of subscriptions) subscription.unsubscribe();
      await Promise.all(loops.map((loop) => loop.stop()));
      await outbound.close();
      // No request of this node is on the wire any more, so its name is free at once.
      await declareNodeDead(db, nodeId);
    },
    walk: {
      look: async () => (await Promise.all([releasing.now(), callingGates.now()])).every((ended) => ended),
      isIdle: () => inFlight.size === 0 && !releases.isBusy,
      // Workers count the time since the last beat by the clock that has leapt.
      leapt: sendBeat,
    },
  };
}
