import { randomBytes } from "node:crypto";
import type { Bus } from "../../shared/bus/bus.ts";
import type { Answer, AnsweredItem, Due, DueItem } from "../../shared/bus/messages.ts";
import { createIdSource, RUN_PREFIX } from "../../shared/domain/ids.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { hostOfTarget, type TargetRules } from "../../shared/domain/target.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Metrics } from "../../shared/platform/metrics.ts";
import { repeat } from "../../shared/platform/repeat.ts";
import type { Seal } from "../../shared/platform/seal.ts";
import { sendHints } from "../../shared/process/hints.ts";
import { createBatcher } from "../../shared/store/batch.ts";
import {
  type Claim,
  type Claimed,
  claimAttempts,
  type GrantedAttempt,
  NodeDeclaredDead,
} from "../../shared/store/claim.ts";
import { type Database, StoreUnavailable } from "../../shared/store/database.ts";
import { beatNode, declareNodeDead } from "../../shared/store/nodes.ts";
import { type SettledItem, type Settlement, settleAttempts } from "../../shared/store/settle.ts";
import { findTargetUrls, type JobPlace } from "../../shared/store/target-urls.ts";
import { sendAttempt } from "./attempts.ts";
import { JobsInFlight, NODE_LIMITS, type NodeLimits, RequestsPerHost } from "./concurrency.ts";
import { openOutbound } from "./outbound.ts";
import { createSigningSecrets } from "./signing-secrets.ts";
import { createSilentBusSweep } from "./silent-bus.ts";

export interface DeliveryOptions {
  db: Database;
  bus: Bus;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  seal: Seal;
  /** From joinCell. */
  nodeId: number;
  regions: readonly Region[];
  targets: TargetRules;
  attemptTimeoutMs: number;
  drainTimeoutMs: number;
  limits?: NodeLimits;
  /** The node was declared dead: nothing of it may go on. */
  onDeclaredDead(): void;
}

const BEAT_EVERY_MS = 500;
const CLAIM_ITEMS_MAX = 200;
const SETTLE_ITEMS_MAX = 200;
/** Two of each: while one waits for its fsync the next is being gathered and sent. */
const STATEMENTS_MAX = 2;
const ASK_AGAIN_MS = 250;
/** A project that has its share of a full node is left alone for so long. */
const SHARE_PAUSE_MS = 250;
/** An attempt whose host is full is asked for again between so long and twice that. */
const HOST_PAUSE_MS = 500;
const WARN_EVERY_MS = 1_000;
const DRAIN_LOOK_MS = 20;

/** Takes what is due, claims it, sends it, settles it, and tells the shard. */
export async function startDelivery(options: DeliveryOptions): Promise<{ stop(): Promise<void> }> {
  const { db, bus, clock, log, metrics, nodeId, regions } = options;
  const ids = createIdSource(randomBytes);
  const outbound = openOutbound(options.targets);
  const secretsOf = createSigningSecrets(db, options.seal);
  const shutdown = new AbortController();
  const sender = { outbound, clock, attemptTimeoutMs: options.attemptTimeoutMs, shutdown: shutdown.signal };
  const limits = options.limits ?? NODE_LIMITS;
  /** One that is heard of twice is claimed once. */
  const inFlight = new JobsInFlight(limits);
  const hosts = new RequestsPerHost(limits);
  let isDraining = false;
  const room = () => (isDraining ? 0 : inFlight.room);

  const claiming = createBatcher({
    async run(claims: Claim[]) {
      metrics.claimBatchSize.observe(claims.length);
      return claimAttempts(db, nodeId, claims);
    },
    itemsMax: CLAIM_ITEMS_MAX,
    inFlightMax: STATEMENTS_MAX,
  });
  const locating = createBatcher({
    run: (jobs: JobPlace[]) => findTargetUrls(db, jobs),
    itemsMax: CLAIM_ITEMS_MAX,
    inFlightMax: STATEMENTS_MAX,
  });
  const settling = createBatcher({
    async run(items: (Settlement & { shard: number; attempt: number })[]) {
      metrics.settleBatchSize.observe(items.length);
      const settled = await settleAttempts(db, items);
      sendHints(bus, items, settled);
      return settled.items;
    },
    itemsMax: SETTLE_ITEMS_MAX,
    inFlightMax: STATEMENTS_MAX,
  });

  /** Claims one owed attempt and, if it is granted, sees it through. Null if the same is under way already. */
  async function take(region: Region, item: DueItem): Promise<Answer | null> {
    const { projectNo, environment, jobId, attempt } = item;
    if (inFlight.has(jobId)) return null;
    if (room() <= 0) return { kind: "node_full" };
    // Not "node_full", which says that the same may be sent again at once: the node has room, though not for this.
    if (inFlight.isShareTaken(projectNo)) return { kind: "blocked", untilAt: clock.now() + SHARE_PAUSE_MS };
    inFlight.add(jobId, projectNo);
    let isSending = false;
    try {
      const job = { projectNo, environment, region, jobId };
      let host: string | null = null;
      if (!hosts.mayClaimBlindly()) {
        const url = await untilAnswered(() => locating.submit(job));
        if (url === null) return { kind: "gone" };
        host = hostOfTarget(url);
        if (!hosts.mayClaimFor(host)) {
          return { kind: "early", waitMs: HOST_PAUSE_MS * (1 + Math.random()) };
        }
      }
      const granted = await claim({ ...job, attempt, runId: ids.next(RUN_PREFIX, clock.now()) }, host);
      if (granted.kind !== "granted") return granted;
      isSending = true;
      // Whatever is thrown there is a bug; the attempt stays on this node's account until its deadline ends it.
      send(region, item, granted.attempt).catch((error) =>
        log.error({ err: error, jobId }, "attempt.failed"),
      );
      return { kind: "granted" };
    } catch (error) {
      if (error instanceof NodeDeclaredDead) options.onDeclaredDead();
      else warn("claim.failed", error);
      return null;
    } finally {
      if (!isSending) inFlight.delete(jobId, projectNo);
    }
  }

  /** What is granted counts at its host from then on; `host` is null where it was not known before. */
  async function claim(wish: Claim, host: string | null): Promise<Claimed> {
    hosts.add(host);
    try {
      const claimed = await untilAnswered(() => claiming.submit(wish));
      if (claimed.kind === "granted") hosts.add(hostOfTarget(claimed.attempt.targetUrl));
      return claimed;
    } finally {
      hosts.delete(host);
    }
  }

  async function send(region: Region, item: DueItem, granted: GrantedAttempt): Promise<void> {
    const { projectNo, environment, attempt, shard } = item;
    metrics.attemptsInFlight.set(inFlight.size);
    metrics.latenessSeconds.observe(Math.max(0, clock.now() - item.dueAt) / 1_000);
    const secrets = await untilAnswered(() => secretsOf({ projectNo, environment })).catch((error) => {
      log.error({ err: error, jobId: item.jobId }, "signing_secrets.unreadable");
      return [];
    });
    const sending = { projectNo, environment, region, attempt, granted, secrets };
    const settlement = await sendAttempt(sending, sender);
    hosts.delete(hostOfTarget(granted.targetUrl));
    const settled = await settle({ ...settlement, shard, attempt });
    const wasFull = room() <= 0;
    inFlight.delete(item.jobId, projectNo);
    if (wasFull) sendBeat();
    metrics.attemptsInFlight.set(inFlight.size);
    metrics.attemptsSettled[settlement.status].inc();
    log.info(
      {
        jobId: item.jobId,
        runId: granted.runId,
        attempt,
        durationMs: Math.round(settlement.durationMs),
        outcome: settlement.status,
        responseStatus: settlement.responseStatus,
        job: settled?.status ?? "settled before",
        nextRetryAt: settled?.nextRetryAt == null ? null : new Date(settled.nextRetryAt).toISOString(),
      },
      "attempt.settled",
    );
  }

  /** Does not give up: the attempt has happened, and nobody else knows how it ended. */
  async function settle(item: Settlement & { shard: number; attempt: number }): Promise<SettledItem | null> {
    for (;;) {
      try {
        return await untilAnswered(() => settling.submit(item));
      } catch (error) {
        // Refused for something in it, and only the text comes from outside; or for something that operators mend.
        warn("settle.refused", error);
        if (item.error !== null) item = { ...item, error: "(not storable)" };
        await Bun.sleep(ASK_AGAIN_MS);
      }
    }
  }

  /**
   * Asks until Postgres has answered, however long that takes: a claim of unknown outcome may have been committed, and
   * an attempt on the wire has to be settled. Errors that are not about reaching Postgres are the caller's.
   */
  async function untilAnswered<T>(ask: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        if (!(error instanceof StoreUnavailable)) throw error;
        warn("delivery.store_unavailable", error);
        await Bun.sleep(ASK_AGAIN_MS);
      }
    }
  }

  // In an outage everything that is in flight asks again and again: one line stands for all that failed in its second.
  let warnedAt = Number.NEGATIVE_INFINITY;
  function warn(message: string, error: unknown): void {
    if (performance.now() < warnedAt + WARN_EVERY_MS) return;
    warnedAt = performance.now();
    log.warn({ err: error, inFlight: inFlight.size }, message);
  }

  async function takeAll({ worker, region, items }: Due): Promise<void> {
    const answers: AnsweredItem[] = [];
    await Promise.all(
      items.map(async (item) => {
        const { projectNo, shard, jobId, attempt } = item;
        const answer = await take(region, item);
        if (answer !== null) answers.push({ projectNo, shard, jobId, attempt, answer });
      }),
    );
    if (answers.length > 0)
      bus.sendAnswers(worker, { delivery: nodeId, region, room: Math.max(0, room()), items: answers });
  }

  const sendBeat = () =>
    bus.sendBeat("delivery", { nodeId, regions: [...regions], room: Math.max(0, room()) });
  async function beat(): Promise<void> {
    sendBeat();
    if (!(await beatNode(db, nodeId))) options.onDeclaredDead();
  }

  const silentBus = createSilentBusSweep({ db, regions, room, take });
  const subscriptions = [
    bus.onDue(nodeId, (due) => void takeAll(due)),
    bus.onBeat("worker", (heard) => silentBus.heardWorker(heard.regions)),
  ];
  const loops = [
    repeat("beat", BEAT_EVERY_MS, beat, log),
    repeat("silent-bus", silentBus.everyMs, silentBus.tick, log),
  ];

  return {
    async stop() {
      isDraining = true;
      sendBeat();
      await loops[1]?.stop();
      const abortAt = performance.now() + options.drainTimeoutMs;
      while (inFlight.size > 0 && performance.now() < abortAt) await Bun.sleep(DRAIN_LOOK_MS);
      shutdown.abort();
      while (inFlight.size > 0) await Bun.sleep(DRAIN_LOOK_MS);
      // Until here workers that had not heard of the drain were told to turn to another node.
      for (const subscription of subscriptions) subscription.unsubscribe();
      await loops[0]?.stop();
      await outbound.close();
      // Nothing of this node is on the wire any more, so its name is free at once.
      await declareNodeDead(db, nodeId);
    },
  };
}
