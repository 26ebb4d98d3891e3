import { countPage } from "../../../../services/worker/bulk/count-page.ts";
import { judgePage } from "../../../../services/worker/bulk/judge-page.ts";
import { BULK_ACTIONS, type BulkFilter } from "../../../../shared/domain/bulk.ts";
import { FLOW_HOLDS, type Flow } from "../../../../shared/domain/flow-key.ts";
import {
  BULK_PREFIX,
  createIdSource,
  JOB_PREFIX,
  REQUEST_PREFIX,
  RUN_PREFIX,
  uuidToId,
} from "../../../../shared/domain/ids.ts";
import { nextInstant, OVERLAPS, readTimetable } from "../../../../shared/domain/schedule.ts";

import { REGIONS, type Scope } from "../../../../shared/domain/scope.ts";
import { hostOfTarget } from "../../../../shared/domain/target.ts";
import { WAIT_REASONS } from "../../../../shared/domain/wait.ts";
import { listHeldRegions, setProjectHeld, setRegionsHeld } from "../../../../shared/store/cell/holds.ts";
import { clearHostLimit, listHostLimits, setHostLimit } from "../../../../shared/store/cell/host-limits.ts";
import * as nodes from "../../../../shared/store/cell/nodes.ts";
import { listMiscountedFlows } from "../../../../shared/store/cell/permits-audit.ts";
import { noteClock } from "../../../../shared/store/database/clock-watch.ts";
import { environmentOf, flowClassNamed, regionOf } from "../../../../shared/store/database/codes.ts";
import { askTime, type Database } from "../../../../shared/store/database/database.ts";
import { startBulk } from "../../../../shared/store/queue/bulk/counting.ts";
import { listOpenBulks } from "../../../../shared/store/queue/bulk/open-bulks.ts";
import { claimAttempts, claimWhole } from "../../../../shared/store/queue/claim.ts";
import { claimKeyed } from "../../../../shared/store/queue/claim-keyed.ts";
import { claimOrdinary } from "../../../../shared/store/queue/claim-ordinary.ts";
import { claimDeliveries } from "../../../../shared/store/queue/delivery-claim.ts";
import { settleDeliveries } from "../../../../shared/store/queue/delivery-settle.ts";
import {
  fireBoundSchedules,
  fireSchedules,
  listDueSchedules,
} from "../../../../shared/store/queue/firings.ts";
import { emptyGateCalls } from "../../../../shared/store/queue/gate-calls.ts";
import { emptyHostCalls, lookAtHosts } from "../../../../shared/store/queue/host-calls.ts";
import { listParkedHosts, releaseParked } from "../../../../shared/store/queue/parked.ts";
import { parkAttempts } from "../../../../shared/store/queue/parking.ts";
import { isPlain, type Settlement, settleAttempts } from "../../../../shared/store/queue/settle.ts";
import { findStarted, settleKeyed } from "../../../../shared/store/queue/settle-keyed.ts";
import {
  isLast,
  type LastSettlement,
  settleOrdinary,
} from "../../../../shared/store/queue/settle-ordinary.ts";
import * as shards from "../../../../shared/store/queue/shards.ts";
import { listShardsInUse, refillLanes, sweepShards } from "../../../../shared/store/queue/sweep.ts";
import { findEndpointUrls, findTargetUrls } from "../../../../shared/store/queue/target-urls.ts";
import { abortBulk, createBulk } from "../../../../shared/store/resources/bulk-operations.ts";
import { changeFlowKey } from "../../../../shared/store/resources/flow-keys.ts";
import { createJobs } from "../../../../shared/store/resources/job-creation.ts";
import { cancelJob, retryRun } from "../../../../shared/store/resources/jobs-by-hand.ts";
import {
  changeSchedule,
  deleteSchedule,
  findSchedule,
} from "../../../../shared/store/resources/schedules.ts";
import { listEnvironmentsInUse, listSigningSecrets } from "../../../../shared/store/resources/secrets.ts";
import { openHost, openLeftHosts, parkHost } from "../../../../shared/store/resources/target-hosts.ts";
import type { Random } from "../random.ts";
import { targetUrl } from "../targets.ts";
import { type Instant, toMs } from "./parameters.ts";
import type { JobRow, LaneRow, OpenDeliveryRow, OpenJobRow, OwedRow, Tables } from "./tables.ts";

/** An operation of the store, chosen by what the model holds, to be asked of the model and of Postgres alike. */
export type Ask = (db: Database) => Promise<unknown>;

/** Chooses random operations of the store, and their parameters. */
export class ModelSteps {
  private readonly ids;
  private readonly lanes = new Map<Database, Set<string>>();

  constructor(
    private readonly random: Random,
    private readonly tables: Tables,
    private readonly now: () => Instant,
  ) {
    this.ids = createIdSource((count) => random.bytes(count));
  }

  /** The name of the next operation, and how it is asked; null if there is no row that it could be about. */
  next(): [name: string, ask: Ask | null] {
    const [name, choose] = this.random.pick(this.random.chance(KEYED_SHARE) ? KEYED_CHOICES : CHOICES);
    return [name, choose.call(this)];
  }

  create(): Ask {
    const { random } = this;
    const before = [...this.tables.jobs.keys()];
    const schedule = this.anyOf([...this.tables.schedules.values()]);
    const count = 1 + random.below(4);
    // The short ways of several jobs are for those without a flow key and a schedule, and uniform ones have statements of their own.
    const isOrdinary = count > 1 && random.chance(0.5);
    const isUniform = isOrdinary && random.chance(0.5);
    const areTagged = random.chance(0.5);
    const jobs = Array.from({ length: count }, (_, index) => {
      const isKnown = before.length > 0 && !isUniform && random.chance(0.05);
      const known = isKnown ? this.tables.jobs.get(random.pick(before)) : undefined;
      // Jobs with flow keys are mostly those of one project, so that several meet at a key.
      const flow = !isOrdinary && random.chance(0.5) ? this.flow() : null;
      const tags = areTagged ? random.pick([null, ["a"], ["NULL", "a:b/@+-._"]]) : null;
      const isOfKey = flow !== null && random.chance(0.7);
      const projectNo = known?.project_no ?? (isOfKey ? 1 : random.pick([1, WATCHED, WATCHED, 3, 4]));
      const isWatched = projectNo === WATCHED && random.chance(0.8);
      return {
        id: known ? uuidToId(JOB_PREFIX, known.id) : this.ids.next(JOB_PREFIX, this.nowMs),
        projectNo,
        environment: environmentOf(known?.environment ?? (isOfKey || isWatched ? 1 : random.below(2))),
        ...{ flow, tags },
        region: regionOf(known?.region ?? (random.chance(0.8) ? 0 : 2)),
        shard: projectNo % 3,
        targetUrl: targetUrl(isWatched ? 0 : random.below(3), "good"),
        payload: "{}",
        // The jobs differ in their due times, since the order of jobs that are due at one instant is not known.
        runAt:
          Math.floor(this.nowMs) +
          (index === 0 ? random.pick([-5_000, 0]) : random.pick([700, 3_000]) + index),
        maxAttempts: 1 + random.below(3),
        baseSeconds: 1,
        capSeconds: 2,
        cause: null,
        ...(schedule !== null && !isOrdinary && random.chance(0.3)
          ? { scheduleId: uuidToId("sch_", schedule.id) }
          : {}),
      };
    });
    const [first] = jobs;
    if (isUniform && first !== undefined) {
      const { projectNo, environment, region, shard, maxAttempts } = first;
      for (const job of jobs) Object.assign(job, { projectNo, environment, region, shard, maxAttempts });
    }
    const ids = new Set(jobs.map(({ id }) => id));
    if (ids.size < jobs.length) return () => Promise.resolve();
    const forgets = random.chance(0.2);
    return (db) => {
      const known = this.lanes.get(db) ?? new Set<string>();
      this.lanes.set(db, known);
      if (forgets) known.clear();
      return createJobs(db, jobs, known);
    };
  }

  private flow(): Flow {
    const { random } = this;
    const key = random.pick(KEYS);
    return {
      key,
      ...random.pick([{}, { concurrency: random.pick([1, 2, 40]) }]),
      // Keys with a rate are rare, since only the long ways are for them.
      ...(key === "b" && random.chance(0.15) ? { rate: random.pick(RATES) } : {}),
      ...random.pick([{}, { hold: random.pick(FLOW_HOLDS) }]),
    };
  }

  changeKey(): Ask {
    const { random } = this;
    const scope = { projectNo: 1, environment: environmentOf(random.chance(0.8) ? 1 : 0) };
    const [key, cause] = [random.pick(KEYS), this.cause()];
    const change = {
      ...random.pick([{}, { concurrency: random.pick([null, 1, 3]) }]),
      ...random.pick([{}, { rate: random.chance(0.2) ? random.pick(RATES) : null }]),
      ...random.pick([{}, { paused: random.chance(0.3) }]),
      ...random.pick([{}, { pinned: random.chance(0.3) }]),
    };
    return (db) => changeFlowKey(db, scope, key, change, cause);
  }

  emptyCalls(): Ask {
    return (db) => emptyGateCalls(db);
  }

  changeHost(): Ask {
    const { random } = this;
    const scope = { projectNo: WATCHED, environment: environmentOf(random.chance(0.8) ? 1 : 0) };
    const [host, cause] = [hostOfTarget(targetUrl(random.pick([0, 0, 1]), "good")), this.cause()];
    return random.pick<Ask>([
      (db) => emptyHostCalls(db),
      (db) => emptyHostCalls(db),
      (db) => lookAtHosts(db),
      (db) => openLeftHosts(db),
      (db) => openHost(db, scope, host, cause, null, 0),
      ...(random.chance(0.3) ? [(db: Database) => parkHost(db, scope, host, cause, null, 0)] : []),
    ]);
  }

  /** Claims attempts that are due of one key, at watched hosts or as probes of hosts, or any attempts. */
  claim(): Ask | null {
    const meant = this.random.pick(["any", "watched", "probes", "probes", "probes", ...KEYS]);
    const isMeant = (row: OpenJobRow) =>
      meant === "any" ||
      (row.due_at !== null &&
        row.due_at <= this.now() &&
        (meant === "watched"
          ? row.project_no === WATCHED
          : meant === "probes"
            ? this.isProbe(row)
            : row.flow_key === meant));
    const claims = this.some(
      this.openJobs((row) => isMeant(row) && (row.node_id === null || this.random.chance(0.2))),
    ).map((row) => ({
      ...placeOf(row),
      jobId: uuidToId(JOB_PREFIX, row.id),
      attempt: row.attempt + (this.random.chance(0.05) ? 1 : 0),
      runId: this.ids.next(RUN_PREFIX, this.nowMs),
    }));
    const node = this.nodeId();
    const run = this.random.pick([claimAttempts, claimWhole, claimKeyed, claimOrdinary]);
    return claims.length === 0
      ? null
      : async (db) => {
          const called: object[] = [];
          const answers = await run(db, node, claims, (owed) => called.push(...owed));
          return { answers, called };
        };
  }

  settle(): Ask | null {
    const arePlain = this.random.chance(0.5);
    const started = this.openJobs((row) => row.run_id !== null);
    const probes = started.filter((row) => this.isProbe(row));
    const settlements = this.some(probes.length > 0 && this.random.chance(0.8) ? probes : started)
      .map((row) => this.settlementOf(row))
      .filter(({ isPlain }) => isPlain || !arePlain);
    const last = settlements.filter(isLast);
    if (this.random.chance(0.2)) return last.length === 0 ? null : (db) => settleOrdinary(db, last);
    if (this.random.chance(0.3)) return last.length === 0 ? null : this.settleKeyed(last);
    return settlements.length === 0 ? null : (db) => settleAttempts(db, settlements);
  }

  /** Asks for most of the next attempts under the run ids of the settled ones' successors, and finds what was started. */
  private settleKeyed(last: readonly LastSettlement[]): Ask {
    const node = this.nodeId();
    const settlements = last.map((settlement) => ({
      ...settlement,
      nextRunId: this.random.chance(0.8) ? this.ids.next(RUN_PREFIX, this.nowMs) : null,
    }));
    return async (db) => {
      const settled = await settleKeyed(db, node, settlements);
      const runs = settlements.flatMap(({ projectNo, environment, nextRunId }) =>
        nextRunId === null ? [] : [{ projectNo, environment, runId: nextRunId }],
      );
      return { ...settled, found: runs.length === 0 ? [] : await findStarted(db, node, runs) };
    };
  }

  private isProbe({ id }: OpenJobRow): boolean {
    return [...this.tables.target_hosts.values()].some(({ probe }) => probe === id);
  }

  private settlementOf(row: OpenJobRow): Settlement {
    const { random } = this;
    const runId = random.chance(0.05)
      ? this.ids.next(RUN_PREFIX, this.nowMs)
      : uuidToId(RUN_PREFIX, row.run_id ?? "");
    const durationMs = random.below(900);
    const common = {
      ...placeOf(row),
      shard: 0,
      jobId: uuidToId(JOB_PREFIX, row.id),
      runId,
      durationMs,
      lateMs: durationMs % 5 === 0 ? undefined : 4 * durationMs,
      waitedFor: WAIT_REASONS[durationMs % 7],
      // Whether the attempt is known to be plain, as nodes know it.
      isPlain:
        random.chance(0.7) &&
        row.started_at !== null &&
        isPlain({
          isTagged: row.tags !== null || row.flow_key !== null || row.project_no === WATCHED,
          runId,
          startedAt: toMs(row.started_at),
        }),
    };
    const isGood = random.chance(0.4);
    const { target_url } = this.tables.jobs.get(row.id) as JobRow;
    // Mostly a probe is in vain, so that hosts stay down and another attempt is the probe.
    const isInVain = this.isProbe(row) && random.chance(0.8);
    const found = isInVain ? "nobody" : random.pick(["nobody", "nobody", "somebody", "unknown"]);
    const met =
      found === "unknown" ? undefined : { host: hostOfTarget(target_url), nobody: found === "nobody" };
    const error = isGood ? null : 'an error, with "quotes" and {braces}';
    const status = isGood ? ("succeeded" as const) : random.pick(["failed", "timed_out"] as const);
    const waitMs = random.pick([0, 0.25, 1_000, 4_000]);
    const next = isGood
      ? { status: "succeeded" as const }
      : random.pick([{ status: "failed" as const }, { status: "queued" as const, waitMs }]);
    return { ...common, met, status, responseStatus: random.pick([null, isGood ? 200 : 500]), error, next };
  }

  cancel(): Ask | null {
    const job = this.anyOf([...this.tables.jobs.values()]);
    const cause = this.cause();
    return job && ((db) => cancelJob(db, scopeOf(job), uuidToId(JOB_PREFIX, job.id), cause));
  }

  retry(): Ask | null {
    const run = this.anyOf([...this.tables.runs.values()]);
    const [cause, newId] = [this.cause(), this.ids.next(RUN_PREFIX, this.nowMs)];
    return (
      run &&
      ((db) => retryRun(db, { ...scopeOf(run), sinceAt: 0 }, uuidToId(RUN_PREFIX, run.id), newId, cause))
    );
  }

  sweep(): Ask {
    const { random } = this;
    const asked = [0, 1, 2].flatMap((shard) =>
      random.chance(0.8) ? [{ region: regionOf(random.pick([0, 0, 2])), shard, sinceAt: this.since() }] : [],
    );
    const except = this.some([...this.tables.lanes.values()]).map((lane) => this.laneOf(lane));
    return (db) => sweepShards(db, asked, except, 1_500);
  }

  refill(): Ask {
    const lanes = this.some([...this.tables.lanes.values()]).map((lane) => ({
      ...this.laneOf(lane),
      sinceAt: this.since(),
      room: 100,
    }));
    const different = [
      ...new Map(lanes.map((lane) => [`${lane.projectNo} ${lane.region} ${lane.flowClass}`, lane])).values(),
    ];
    return (db) => refillLanes(db, different, 1_500);
  }

  lookUp(): Ask {
    const { random, tables } = this;
    const jobs = this.some([...tables.jobs.values()]).map((row) => ({
      ...placeOf(row),
      id: uuidToId(JOB_PREFIX, row.id),
    }));
    const owed = this.some([...tables.open_deliveries.values()]).map((row) => ({
      ...placeOf(row),
      id: uuidToId("dlv_", row.id),
    }));
    const now = Math.floor(this.nowMs);
    const overdue = random.pick([
      { beganBefore: now - 500, afterMs: 2_000 },
      { beganBefore: now - 4_000, afterMs: 0 },
    ]);
    const looks: Ask[] = [
      (db) => listShardsInUse(db, ["us-east"]).then(inAnyOrder),
      (db) => findTargetUrls(db, jobs),
      (db) => findEndpointUrls(db, owed),
      (db) => nodes.listLostAttempts(db, overdue, LOST_MAX).then(inAnyOrder),
      (db) => nodes.listLostDeliveries(db, overdue, LOST_MAX).then(inAnyOrder),
      (db) => nodes.listNodes(db),
      (db) => nodes.findLivingNode(db, "worker", "node-1"),
      (db) => listMiscountedFlows(db),
      (db) => listEnvironmentsInUse(db, ["us-east", "eu-central"], 100).then(inAnyOrder),
      (db) => listSigningSecrets(db, [{ projectNo: 1, environment: "production" }]),
      (db) => listHostLimits(db).then((limits) => limits.map(({ host, requests }) => ({ host, requests }))),
      (db) => listHeldRegions(db).then((held) => held.map(({ region }) => region)),
      (db) => askTime(db),
      (db) => listParkedHosts(db, "jobs"),
      (db) => listParkedHosts(db, "webhooks"),
    ];
    return async (db) => {
      const answers: unknown[] = [];
      for (const look of looks) answers.push(await look(db));
      return answers;
    };
  }

  own(): Ask {
    const { random } = this;
    const held = this.some([...this.tables.shards.values()]).map(({ region, shard, epoch }) => ({
      region: regionOf(region),
      shard,
      epoch: epoch - (random.chance(0.1) ? 1 : 0),
    }));
    const node = this.nodeId();
    return random.pick<Ask>([
      (db) => shards.createShards(db, ["us-east", "eu-central"], 3),
      (db) => shards.listFreeShards(db, ["us-east", "eu-central"]),
      (db) => shards.acquireShards(db, node, held, 4_000),
      (db) => shards.renewShards(db, node, held, 4_000),
      (db) => shards.resignShards(db, node, held),
    ]);
  }

  join(): Ask {
    const { random } = this;
    const kind = random.pick(["worker", "delivery"] as const);
    const node = { kind, name: `node-${random.below(3)}`, regions: REGIONS, process: "model" };
    const [id, answered] = [this.nodeId(), random.below(6)];
    const isRare = random.chance(0.2);
    return isRare
      ? (db) => nodes.declareNodeDead(db, id)
      : random.chance(0.6)
        ? (db) => nodes.addNode(db, node)
        : (db) => nodes.beatNode(db, id, answered);
  }

  hold(): Ask {
    const { random } = this;
    const [cause, isOn] = [this.operator(), random.chance(0.3)];
    const project = uuidToId("prj_", random.pick([...this.tables.projects.values()]).id);
    const [host, requests] = [`host-${random.below(3)}.example:443`, random.below(4)];
    return random.pick<Ask>([
      (db) => setProjectHeld(db, project, isOn, cause),
      (db) => setRegionsHeld(db, ["us-east"], isOn, cause),
      (db) => (isOn ? setHostLimit(db, { host, requests }, cause) : clearHostLimit(db, host, cause)),
    ]);
  }

  watchClock(): Ask {
    const { random } = this;
    const now = Math.floor(this.nowMs);
    const leaptAt = random.chance(0.3) ? now - random.below(100_000) : null;
    const aheadMs = random.pick([0, 0, 80_000, 700_000]);
    return (db) => noteClock(db, leaptAt === null ? null : leaptAt + aheadMs);
  }

  claimOfDeliveries(): Ask | null {
    const claims = this.some(this.openDeliveries()).map((row) => ({
      ...placeOf(row),
      deliveryId: uuidToId("dlv_", row.id),
      attempt: row.attempt,
      attemptId: this.ids.next("dat_", this.nowMs),
    }));
    const node = this.nodeId();
    return claims.length === 0 ? null : (db) => claimDeliveries(db, node, claims);
  }

  settleOfDeliveries(): Ask | null {
    const { random } = this;
    const sent = this.openDeliveries().filter((row) => row.node_id !== null);
    const goodShare = random.pick([0, 0.5, 1]);
    const settlements = this.some(sent).map((row) => {
      const isGood = random.chance(goodShare);
      const pending = {
        status: "pending" as const,
        waitMs: random.pick([0, 1_000, null]),
        waits: row.waits + 1,
      };
      return {
        ...placeOf(row),
        shard: 0,
        deliveryId: uuidToId("dlv_", row.id),
        attemptId: uuidToId("dat_", row.attempt_id ?? ""),
        status: isGood ? ("succeeded" as const) : ("failed" as const),
        responseStatus: isGood ? 200 : 500,
        error: isGood ? null : "no",
        isOurFault: random.chance(0.2),
        durationMs: 7,
        next: isGood
          ? { status: "succeeded" as const }
          : random.pick([{ status: "failed" as const }, pending]),
      };
    });
    const windowMs = random.pick([3_000, 60_000]);
    return settlements.length === 0 ? null : (db) => settleDeliveries(db, settlements, windowMs);
  }

  park(): Ask | null {
    const { random, tables } = this;
    if (random.chance(0.5)) {
      const jobs = this.someOfOwnTime(this.openJobs((row) => row.due_at !== null)).map((row) => ({
        ...placeOf(row),
        ...{
          id: uuidToId(JOB_PREFIX, row.id),
          attempt: row.attempt,
          host: `host-${random.below(2)}`,
          url: "",
        },
      }));
      return jobs.length === 0 ? null : (db) => parkAttempts(db, "jobs", jobs);
    }
    const owed = this.someOfOwnTime(this.openDeliveries()).map((row) => ({
      ...placeOf(row),
      ...{ id: uuidToId("dlv_", row.id), attempt: row.attempt, host: `host-${random.below(2)}` },
      url: random.chance(0.9)
        ? (tables.webhooks.get(row.webhook_id)?.url ?? "")
        : "https://elsewhere.example/",
    }));
    return owed.length === 0 ? null : (db) => parkAttempts(db, "webhooks", owed);
  }

  release(): Ask {
    const { random } = this;
    const kind = random.pick(["jobs", "webhooks"] as const);
    const after = random.chance(0.5)
      ? null
      : { projectNo: 1, region: "us-east" as const, environment: environmentOf(random.below(2)) };
    const options = {
      host: `host-${random.below(2)}`,
      regions: ["us-east" as const, "eu-central" as const],
      after,
    };
    const [count, countMin] = [1 + random.below(6), random.pick([0, 2])];
    return (db) => releaseParked(db, kind, { ...options, count, countMin });
  }

  fire(): Ask | null {
    const { random, tables } = this;
    const firings = this.some([...tables.schedules.values()]).flatMap((row) => {
      const shard = tables.shards.get(`0/${row.shard}`);
      if (row.next_run_at === null || shard === undefined) return [];
      const { projectNo, environment } = scopeOf(row);
      const nextRunAt = toMs(row.next_run_at);
      const timetable = readTimetable(row.cron, row.timezone);
      return [
        {
          ...{ projectNo, environment, nextRunAt, cron: row.cron, timezone: row.timezone, trace: null },
          scheduleId: uuidToId("sch_", row.id),
          held: {
            region: "us-east" as const,
            shard: row.shard,
            epoch: shard.epoch - (random.chance(0.2) ? 1 : 0),
          },
          firedFor: random.chance(0.9) ? nextRunAt : null,
          thenAt: nextInstant(timetable, nextRunAt),
          missed: null,
          jobId: this.ids.next(JOB_PREFIX, this.nowMs),
        },
      ];
    });
    const run = random.chance(0.5) ? fireSchedules : fireBoundSchedules;
    return firings.length === 0 ? null : (db) => run(db, firings);
  }

  schedule(): Ask | null {
    const { random } = this;
    const row = this.anyOf([...this.tables.schedules.values()]);
    if (row === null) return null;
    const [scope, id, cause] = [scopeOf(row), uuidToId("sch_", row.id), this.cause()];
    const [sinceAt, paused] = [Math.floor(this.nowMs) - 20_000, random.chance(0.5)];
    const nextRunAt = paused ? null : nextInstant(readTimetable(row.cron, row.timezone), this.nowMs + 6_000);
    const flow = random.pick([null, row.flow, this.flow()]);
    const terms = {
      flow,
      name: `${row.id} ${random.below(3)}`,
      overlap: random.pick([null, ...OVERLAPS]),
      spreadSeconds: random.pick([null, 0, 1]),
    };
    if (random.chance(0.1)) return (db) => deleteSchedule(db, scope, id, cause);
    return random.pick<Ask>([
      (db) => listDueSchedules(db, [0, 1, 2], { sinceAt, aheadMs: 3_000, limit: 10 }),
      (db) => findSchedule(db, scope, id),
      (db) =>
        changeSchedule(
          db,
          scope,
          id,
          (found) => ({
            ...{ ...found, ...terms, paused, nextRunAt },
            tags: found.tags === null ? ["later"] : null,
          }),
          9,
          cause,
        ),
    ]);
  }

  bulk(): Ask {
    const { random, tables } = this;
    const id = this.ids.next(BULK_PREFIX, this.nowMs);
    const cause = this.cause();
    const action = random.pick(BULK_ACTIONS);
    const schedule = this.anyOf([...tables.schedules.values()]);
    const scheduleId = schedule === null ? "" : uuidToId("sch_", schedule.id);
    const scope =
      schedule !== null && random.chance(0.6)
        ? scopeOf(schedule)
        : { projectNo: 1 + random.below(3), environment: environmentOf(random.below(2)) };
    const ago = (ms: number) => new Date(Math.floor(this.nowMs) - ms).toISOString();
    const filter: BulkFilter =
      action === "backfill"
        ? { schedule_id: scheduleId, from: ago(30_000), to: ago(1_000) }
        : random.pick<BulkFilter>([
            { all: true },
            { tag: "a" },
            ...(schedule === null ? [] : [{ schedule_id: scheduleId }, { schedule_id: scheduleId }]),
            ...(action === "cancel" ? [{ status: random.pick(["queued", "running"] as const) }] : []),
            ...(action === "retry" ? [{ error_contains: 'with "quotes' }, { response_status: 500 }] : []),
            {
              region: "us-east",
              target_host: new URL(targetUrl(1, "good")).hostname,
              created_after: ago(4_000),
            },
          ]);
    const shard = scope.projectNo % 3;
    const wish = {
      id,
      action,
      filter,
      perSecond: random.pick([1, 3, 30]),
      dryRun: random.chance(0.2),
      shard,
    };
    const isPossible = action !== "backfill" || schedule !== null;
    return (db) => (isPossible ? createBulk(db, scope, wish, cause, null) : Promise.resolve());
  }

  /** Does what a worker would do next for one of the bulk operations, or aborts it. */
  carryOut(): Ask | null {
    const { random, tables } = this;
    const [now, place] = [Math.floor(this.nowMs), random.next()];
    const newIds = Array.from({ length: PAGE_MAX }, () => this.ids.next("", this.nowMs));
    const [isWrong, aborts, cause] = [random.chance(0.05), random.chance(0.05), this.cause()];
    return async (db) => {
      const open = await listOpenBulks(db, [0, 1, 2]);
      const bulk = open[Math.floor(place * open.length)];
      const shard = bulk && tables.shards.get(`0/${bulk.shard}`);
      if (bulk === undefined || shard === undefined) return open;
      const { projectNo, environment, id } = bulk;
      if (aborts) return [open, await abortBulk(db, bulk, id, cause, null)];
      const epoch = shard.epoch - (isWrong ? 1 : 0);
      const held = { region: "us-east" as const, shard: bulk.shard, epoch };
      const at = { projectNo, environment, id, held };
      let used = 0;
      const ids = { next: (prefix: string) => `${prefix}${newIds[used++]}` };
      switch (bulk.status) {
        case "counting":
          return [open, await countPage(db, bulk, at, now)];
        case "waiting":
          return [open, await startBulk(db, at)];
        case "running":
          return [open, await judgePage(db, bulk, at, { ids, now })];
      }
    };
  }

  private get nowMs(): number {
    return toMs(this.now());
  }

  private since(): number {
    return this.random.pick([Number.NEGATIVE_INFINITY, Math.floor(this.nowMs) - 2_000]);
  }

  private laneOf({ project_no, region, environment }: LaneRow) {
    const flowClass = flowClassNamed(environment + this.random.pick([0, 2]));
    return { projectNo: project_no, region: regionOf(region), flowClass };
  }

  private openJobs(isWanted: (row: OpenJobRow) => boolean): OpenJobRow[] {
    return [...this.tables.open_jobs.values()].filter(isWanted);
  }

  private openDeliveries(): OpenDeliveryRow[] {
    return [...this.tables.open_deliveries.values()];
  }

  /** Some rows that are alone in their due time: the order in which rows of one instant are released is not known. */
  private someOfOwnTime<Row extends OwedRow>(rows: readonly Row[]): Row[] {
    const timeOf = (row: OwedRow) => row.parked_due_at ?? row.due_at;
    const all = [...this.openJobs(() => true), ...this.openDeliveries()];
    const isAlone = (row: Row) => all.filter((other) => timeOf(other) === timeOf(row)).length === 1;
    return this.some(rows).filter(isAlone);
  }

  private some<Row>(rows: readonly Row[]): Row[] {
    return this.random.shuffle(rows).slice(0, 1 + this.random.below(5));
  }

  private anyOf<Row>(rows: readonly Row[]): Row | null {
    return rows.length === 0 ? null : this.random.pick(rows);
  }

  private nodeId(): number {
    return this.random.below(this.tables.nodes.size + 1);
  }

  private cause = () => ({ requestId: this.ids.next(REQUEST_PREFIX, this.nowMs), keyNo: 0 });
  private operator = () => ({ requestId: this.ids.next(REQUEST_PREFIX, this.nowMs), operator: "model" });
}

type Choice = [string, (this: ModelSteps) => Ask | null];
const { prototype: steps } = ModelSteps;
const times = (count: number, ...choice: Choice) => Array.from({ length: count }, () => choice);

const CHOICES: readonly Choice[] = [
  ...times(3, "create", steps.create),
  ...times(6, "claim", steps.claim),
  ...times(5, "settle", steps.settle),
  ...times(1, "cancel", steps.cancel),
  ...times(1, "retry", steps.retry),
  ...times(1, "sweep", steps.sweep),
  ...times(1, "refill", steps.refill),
  ...times(1, "look up", steps.lookUp),
  ...times(2, "own", steps.own),
  ...times(1, "join", steps.join),
  ...times(2, "hold", steps.hold),
  ...times(1, "watch clock", steps.watchClock),
  ...times(4, "claim of deliveries", steps.claimOfDeliveries),
  ...times(3, "settle of deliveries", steps.settleOfDeliveries),
  ...times(3, "park", steps.park),
  ...times(1, "release", steps.release),
  ...times(4, "fire", steps.fire),
  ...times(2, "schedule", steps.schedule),
  ...times(3, "bulk", steps.bulk),
  ...times(5, "carry out", steps.carryOut),
];

/** Many jobs of few flow keys and at few hosts, which come and go. */
const KEYED_CHOICES: readonly Choice[] = [
  ...times(3, "create", steps.create),
  ...times(6, "claim", steps.claim),
  ...times(5, "settle", steps.settle),
  ...times(1, "change key", steps.changeKey),
  ...times(1, "empty calls", steps.emptyCalls),
  ...times(2, "change host", steps.changeHost),
  ...times(1, "retry", steps.retry),
];
const KEYED_SHARE = 0.35;

/** The project whose hosts are watched. */
export const WATCHED = 2;
const KEYS = ["a", "b"];
const RATES = [
  { count: 1, per_seconds: 1 },
  { count: 3, per_seconds: 4 },
  { count: 100, per_seconds: 2 },
];

/** Members of a page at the greatest pace that is asked for here. */
const PAGE_MAX = 3;

/** More than there are, since the order of attempts that began at one instant is not known. */
const LOST_MAX = 1_000;
const inAnyOrder = (rows: readonly object[]) => rows.map((row) => JSON.stringify(row)).sort();

const scopeOf = (row: { project_no: number; environment: number }): Scope => ({
  projectNo: row.project_no,
  environment: environmentOf(row.environment),
});
const placeOf = (row: { project_no: number; environment: number; region: number }) => ({
  ...scopeOf(row),
  region: regionOf(row.region),
});
