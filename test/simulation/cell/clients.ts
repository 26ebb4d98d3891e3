import { type Announcer, createAnnouncer } from "../../../services/gateway/announcer.ts";
import { sendCommands, sendProjectChange } from "../../../shared/bus/hints.ts";
import type { BulkFilter } from "../../../shared/domain/bulk.ts";
import { ApiError } from "../../../shared/domain/errors.ts";
import {
  BULK_PREFIX,
  idToUuid,
  JOB_PREFIX,
  REQUEST_PREFIX,
  RUN_PREFIX,
  SCHEDULE_PREFIX,
  uuidToId,
} from "../../../shared/domain/ids.ts";
import { nextInstant, readTimetable } from "../../../shared/domain/schedule.ts";
import type { Scope } from "../../../shared/domain/scope.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { hostOfTarget } from "../../../shared/domain/target.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import { setProjectHeld, setRegionsHeld } from "../../../shared/store/cell/holds.ts";
import { clearHostLimit, setHostLimit } from "../../../shared/store/cell/host-limits.ts";
import { bulkActionCode, environmentOf } from "../../../shared/store/database/codes.ts";
import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { changeOf } from "../../../shared/store/resources/audit.ts";
import { changeFlowKey } from "../../../shared/store/resources/flow-keys.ts";
import { createJobs, type JobToCreate } from "../../../shared/store/resources/job-creation.ts";
import { cancelJob, retryRun } from "../../../shared/store/resources/jobs-by-hand.ts";
import { changeSchedule } from "../../../shared/store/resources/schedules.ts";
import { openHost, parkHost } from "../../../shared/store/resources/target-hosts.ts";
import { flowTerms } from "./first-rows.ts";
import { openCell, SHARDS_PER_REGION, type World } from "./nodes.ts";
import type { Operation, WantedBulk, WantedJob } from "./plan.ts";
import type { PlannedFlow } from "./plan-flows.ts";
import type { SimProcess } from "./sim-process.ts";
import type { Tables, WebhookRow } from "./store/tables.ts";
import { targetUrl } from "./targets.ts";

/** How far back a backfill looks. */
const BACKFILL_MS = 12_000;
const TRIES_MAX = 6;
const TRY_AGAIN_MS = 300;
/** After this long no statement is carried out any more (server.ts). */
const LATEST_MS = 5_000;
const SCHEDULES_MAX = 1_000;
const MORE_PLACES = 2;
const FAILED_RUNS = [2, 3];

/** A gateway and its clients: they ask for jobs, change what exists, and note what they were answered. */
export class Clients {
  /** The jobs that were asked for, in their order. */
  readonly asked: (Scope & { id: string })[] = [];
  readonly cell: Promise<Cell>;
  private readonly announcer: Promise<Announcer>;
  private readonly lanes = new Set<string>();
  /** The last change of each endpoint. */
  private readonly endpointChanges = new Map<string | undefined, Promise<void>>();

  constructor(
    private readonly process: SimProcess,
    private readonly world: World,
    private readonly tables: Tables,
  ) {
    this.cell = openCell(process, world);
    this.announcer = this.cell.then(createAnnouncer);
  }

  /** Performs the operation. A request that fails for want of a database is tried some times more. */
  async perform(operation: Operation): Promise<void> {
    const cell = await this.cell;
    switch (operation.kind) {
      case "create":
        return this.create(cell, operation.jobs, operation.isUntold);
      case "cancel":
        return this.ofJob(operation.part, (job) => this.cancel(cell, job));
      case "retry":
        return this.ofJob(operation.part, (job) => this.retry(cell, job));
      case "bulk":
        return this.askForBulk(cell, operation);
      case "pause schedule": {
        const id = [...this.tables.schedules.keys()][operation.schedule];
        return this.forAWhile(operation.forMs, (isOn) => this.setSchedule(cell, id, !isOn));
      }
      case "disable endpoint": {
        const id = [...this.tables.webhooks.keys()][operation.endpoint];
        return this.forAWhile(operation.forMs, (isOn) => this.setEndpoint(cell, id, !isOn));
      }
      case "hold project": {
        const { id } = [...this.tables.projects.values()][operation.project] ?? {};
        if (id === undefined) return;
        return this.forAWhile(operation.forMs, async (isOn) => {
          await setProjectHeld(cell.db, uuidToId("prj_", id), isOn, this.operator());
        });
      }
      case "hold region":
        return this.forAWhile(operation.forMs, async (isOn) => {
          const regions = this.world.regions.slice(0, 1);
          await setRegionsHeld(cell.db, regions, isOn, this.operator());
        });
      case "change flow": {
        const flow = this.world.flows[operation.flow];
        return flow && this.changeFlow(cell, flow, operation);
      }
      case "park host": {
        const { projectNo, host: number, forMs } = operation;
        const scope = { projectNo, environment: "production" as const };
        const host = hostOfTarget(targetUrl(number, "good"));
        return this.forAWhile(forMs, async (isOn) => {
          await (isOn ? parkHost : openHost)(cell.db, scope, host, this.client(), null, 0);
        });
      }
      case "limit host": {
        const { host: number, requests } = operation;
        const host = new URL(targetUrl(number, "good")).host;
        return this.forAWhile(operation.forMs, async (isOn) => {
          if (isOn) await setHostLimit(cell.db, { host, requests }, this.operator());
          else await clearHostLimit(cell.db, host, this.operator());
        });
      }
    }
  }

  async create(cell: Cell, wanted: readonly WantedJob[], isUntold = false): Promise<void> {
    const now = cell.clock.now();
    const jobs = wanted.map((job, index): JobToCreate => {
      const projectNo = job.project + 1;
      const { environment, region, maxAttempts, baseSeconds, capSeconds } = job;
      return {
        ...{ projectNo, environment, region, maxAttempts, baseSeconds, capSeconds },
        id: this.process.ids.next(JOB_PREFIX, now),
        shard: shardOf(projectNo, SHARDS_PER_REGION),
        targetUrl: targetUrl(job.host, job.habit),
        payload: "{}",
        runAt: Math.floor(now) + job.delayMs,
        flow: job.flow === undefined ? null : flowTerms(job.flow),
        tags: index % 3 === 2 ? ["third", `host:${job.host}`] : null,
        cause: this.client(),
      };
    });
    for (const job of jobs) {
      const { projectNo: project, environment, maxAttempts, baseSeconds, capSeconds } = job;
      this.asked.push({ id: job.id, projectNo: project, environment });
      const terms = { job: job.id, project, maxAttempts, baseSeconds, capSeconds };
      this.note({ kind: "job asked", at: this.now, ...terms });
    }
    let tries = 0;
    const created = await this.untilAnswered(() => {
      tries++;
      return createJobs(cell.db, jobs, this.lanes);
    });
    if (created === null) return;
    if (isUntold) this.world.recording.meet("jobs of which no message tells");
    for (const [index, answer] of created.entries()) {
      const { id: job = "", runAt = 0 } = jobs[index] ?? {};
      const clock = this.world.server.readClock();
      // A job that its flow key keeps back is not owed yet.
      const dueAt = answer.kind === "created" ? (answer.owed[0]?.dueAt ?? runAt) : null;
      if (dueAt !== null) this.note({ kind: "job accepted", at: this.now, clock, job, dueAt });
      // A try without an answer may be carried out later, when the month has runs again.
      else if (tries === 1) this.note({ kind: "job refused", at: this.now, job });
    }
    const owedBy = (mayStart: boolean) =>
      created.flatMap((answer) =>
        answer.kind === "created" && answer.mayStart === mayStart ? answer.owed : [],
      );
    const startable = owedBy(true);
    if (startable.length > 0) this.world.recording.meet("a job that may start");
    if (!isUntold) (await this.announcer).announce(startable, owedBy(false));
  }

  /** Notes the limits that flow keys have from the beginning on. */
  noteFlows(): void {
    for (const flow of this.world.flows) this.noteFlow(flow, false);
  }

  private changeFlow(
    { db }: Cell,
    flow: PlannedFlow,
    { forMs, isRaised }: Extract<Operation, { kind: "change flow" }>,
  ): Promise<void> {
    const scope = { projectNo: flow.projectNo, environment: flow.environment };
    const raised = { ...flow, concurrency: (flow.concurrency ?? 0) + MORE_PLACES };
    return this.forAWhile(forMs, async (isOn) => {
      const isLooser = isOn === isRaised;
      const held = isRaised && isOn ? raised : flow;
      const change = isRaised ? { concurrency: held.concurrency } : { paused: isOn };
      const isPaused = !isRaised && isOn;
      if (isLooser) this.noteFlow(held, isPaused);
      await changeFlowKey(db, scope, flow.key, change, this.client());
      if (!isLooser) this.noteFlow(held, isPaused);
    });
  }

  /** A change that lets more start is noted before it is asked for, one that lets fewer start once it is answered. */
  private noteFlow({ projectNo, environment, key, concurrency, rate }: PlannedFlow, paused: boolean): void {
    const name = { project: projectNo, environment, gate: key };
    const limits = { concurrency, rate: rate && { count: rate.count, perSeconds: rate.per_seconds }, paused };
    this.note({ kind: "flow set", at: this.now, clock: this.world.server.readClock(), ...name, ...limits });
  }

  private async cancel({ db }: Cell, job: Scope & { id: string }): Promise<void> {
    const canceled = await this.untilAnswered(() => cancelJob(db, job, job.id, this.client()));
    if (canceled?.kind !== "canceled") return;
    this.world.recording.meet("cancel");
    this.note({ kind: "job canceled", at: this.now, job: job.id, attempts: canceled.job.attempts });
  }

  private async retry({ db, bus, clock }: Cell, job: Scope & { id: string }): Promise<void> {
    const uuid = idToUuid(job.id);
    const failed = [...this.tables.runs.values()].findLast(
      ({ job_id, status }) => job_id === uuid && FAILED_RUNS.includes(status),
    );
    if (failed === undefined) return;
    const run = this.process.ids.next(RUN_PREFIX, clock.now());
    this.note({ kind: "retry asked", at: this.now, job: job.id, run });
    const scope = { ...job, sinceAt: 0 };
    const failedId = uuidToId(RUN_PREFIX, failed.id);
    // The request has no Idempotency-Key, so a retry of unknown outcome is not asked for again.
    const retried = await this.onceAnswered(() => retryRun(db, scope, failedId, run, this.client()));
    if (retried === null || retried === "unavailable" || retried.kind !== "retried") return;
    this.world.recording.meet("retry by hand");
    this.note({ kind: "retry accepted", at: this.now, job: job.id, run, attempt: retried.run.attempt });
    sendCommands(bus, retried.owed, clock.now());
  }

  /** Asks for a bulk operation once, since the request has no Idempotency-Key. */
  private async askForBulk({ db, bus, clock }: Cell, wanted: WantedBulk): Promise<void> {
    const schedule = [...this.tables.schedules.values()][wanted.schedule];
    const filter = filterOf(wanted, schedule?.id, clock.now());
    if (filter === null) return;
    const projectNo =
      schedule !== undefined && filter.schedule_id !== undefined ? schedule.project_no : wanted.project + 1;
    const environment = filter.schedule_id === undefined ? wanted.environment : "production";
    const id = this.process.ids.next(BULK_PREFIX, clock.now());
    const shard = shardOf(projectNo, SHARDS_PER_REGION);
    const change = changeOf({ projectNo, environment }, id, this.client());
    const { action, perSecond, isDry, abortsAfterMs } = wanted;
    const terms = [shard, bulkActionCode(action), perSecond, isDry, JSON.stringify(filter), "{}"];
    const values = [...change, null, null, null, ...terms];
    const asked = await this.onceAnswered(() => db.run("create_bulk", "", values));
    if (asked === null || asked === "unavailable") return;
    sendProjectChange(bus, projectNo, shard);
    if (abortsAfterMs === null) return;
    await Bun.sleep(abortsAfterMs);
    await this.untilAnswered(() => db.run("abort_bulk", "", change));
    this.world.recording.meet("bulk aborted");
  }

  async setSchedule({ db, bus, clock }: Cell, uuid: string | undefined, isActive: boolean): Promise<void> {
    const row = uuid === undefined ? undefined : this.tables.schedules.get(uuid);
    if (row === undefined) return;
    const id = uuidToId(SCHEDULE_PREFIX, row.id);
    const scope = { projectNo: row.project_no, environment: environmentOf(row.environment) };
    if (isActive) this.noteSchedule(id, true);
    await changeSchedule(
      db,
      scope,
      id,
      (schedule) => {
        const timetable = readTimetable(schedule.cron, schedule.timezone);
        const now = clock.now();
        if (isActive) this.noteSchedule(id, true, now);
        const nextRunAt = isActive ? nextInstant(timetable, now) : null;
        return { ...schedule, paused: !isActive, nextRunAt };
      },
      SCHEDULES_MAX,
      this.client(),
    );
    if (!isActive) this.noteSchedule(id, false);
    sendProjectChange(bus, scope.projectNo, row.shard);
  }

  /**
   * An activation is noted before it is asked for, a pause once it is answered: between them the schedule may fire. It
   * fires from the gateway's own time on, which is ahead of the database's clock after that clock was set back.
   */
  private noteSchedule(schedule: string, isActive: boolean, gatewayAt = 0): void {
    const { nowAt, latestAt } = this.world.server.readClock();
    const clock = { nowAt, latestAt: Math.max(latestAt, gatewayAt) };
    this.note({ kind: "schedule set", at: this.now, clock, schedule, isActive });
  }

  /** Changes of one endpoint take turns. A change without an answer has the time in which it may still be carried out. */
  setEndpoint(cell: Cell, uuid: string | undefined, isEnabled: boolean): Promise<void> {
    const before = this.endpointChanges.get(uuid) ?? Promise.resolve();
    const change = before.then(() => this.changeEndpoint(cell, uuid, isEnabled));
    this.endpointChanges.set(
      uuid,
      change.catch(() => Bun.sleep(LATEST_MS)),
    );
    return change;
  }

  private async changeEndpoint({ db }: Cell, uuid: string | undefined, isEnabled: boolean): Promise<void> {
    const row = uuid === undefined ? undefined : this.tables.webhooks.get(uuid);
    if (row === undefined) return;
    const { randomUuid } = this;
    const seen = (endpoint: WebhookRow, enabled: boolean) => [
      endpoint.url,
      endpoint.events,
      null,
      null,
      enabled,
    ];
    const scope = [row.project_no, row.environment, row.id, randomUuid(), 0, row.id];
    const values = [...scope, ...seen(row, row.enabled), ...seen(row, isEnabled), "{}", "", 0];
    const note = () =>
      this.note({ kind: "endpoint set", at: this.now, endpoint: uuidToId("whk_", row.id), isEnabled });
    if (isEnabled) note();
    await db.run("change_webhook", "", values);
    if (!isEnabled) note();
  }

  private readonly randomUuid = () => idToUuid(this.process.ids.next(REQUEST_PREFIX, 0));

  private async ofJob(part: number, act: (job: Scope & { id: string }) => Promise<void>): Promise<void> {
    const job = this.asked[Math.floor(part * this.asked.length)];
    if (job !== undefined) await act(job);
  }

  /** Turns something on, and off again after a while. */
  private async forAWhile(ms: number, set: (isOn: boolean) => Promise<void>): Promise<void> {
    await this.untilSet(() => set(true));
    await Bun.sleep(ms);
    await this.untilSet(() => set(false));
  }

  /** A change without an answer may still be carried out. It is asked for again once that is over, and never undoes a later one. */
  private async untilSet(set: () => Promise<void>): Promise<void> {
    while ((await this.onceAnswered(set)) === "unavailable") await Bun.sleep(LATEST_MS);
  }

  /** Answers null if no answer came in some tries, or if the request was refused. */
  private async untilAnswered<Answer>(ask: () => Promise<Answer>): Promise<Answer | null> {
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const answer = await this.onceAnswered(ask);
      if (answer !== "unavailable") return answer;
      await Bun.sleep(TRY_AGAIN_MS);
    }
    return null;
  }

  private async onceAnswered<Answer>(ask: () => Promise<Answer>): Promise<Answer | null | "unavailable"> {
    try {
      return await ask();
    } catch (error) {
      if (error instanceof ApiError) return null;
      if (error instanceof StoreUnavailable) return "unavailable";
      throw error;
    }
  }

  private client = () => ({ requestId: this.process.ids.next(REQUEST_PREFIX, 0), keyNo: 0 });
  private operator = () => ({ requestId: this.process.ids.next(REQUEST_PREFIX, 0), operator: "simulation" });

  private get now(): number {
    return this.world.timeline.now;
  }

  private note(event: Parameters<World["recording"]["note"]>[0]): void {
    this.world.recording.note(event);
  }
}

/** The filter of a wanted bulk operation. Null if it needs a schedule and there is none. */
function filterOf({ action, by }: WantedBulk, uuid: string | undefined, now: number): BulkFilter | null {
  const schedule = uuid === undefined ? null : uuidToId(SCHEDULE_PREFIX, uuid);
  if (action === "backfill") {
    const [from, to] = [now - BACKFILL_MS, now].map((at) => new Date(Math.floor(at)).toISOString()) as [
      string,
      string,
    ];
    return schedule === null ? null : { schedule_id: schedule, from, to };
  }
  switch (by) {
    case "all":
      return { all: true };
    case "tag":
      return { tag: "third" };
    case "host":
      return { target_host: new URL(targetUrl(1, "good")).hostname };
    case "error":
      return { error_contains: "50" };
    case "queued":
      return { status: "queued", region: "us-east" };
    case "schedule":
      return schedule === null ? null : { schedule_id: schedule };
  }
}
