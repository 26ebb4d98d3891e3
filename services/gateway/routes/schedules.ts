import type { Bus } from "../../../shared/bus/bus.ts";
import { sendProjectChange } from "../../../shared/bus/hints.ts";
import {
  readFiringListQuery,
  readSchedulePreview,
  viewFiring,
  viewPreview,
} from "../../../shared/contract/firing.ts";
import type { Body } from "../../../shared/contract/json.ts";
import { viewList } from "../../../shared/contract/list.ts";
import {
  type AcceptedSchedule,
  readNewSchedule,
  readScheduleListQuery,
  readSchedulePut,
  readScheduleUpdate,
  scheduleParts,
} from "../../../shared/contract/schedule.ts";
import { type Firing, firingsAfter } from "../../../shared/domain/cron/firings.ts";
import { resourceNotFound } from "../../../shared/domain/errors.ts";
import { idTimeMs, JOB_PREFIX, retypeId, SCHEDULE_PREFIX } from "../../../shared/domain/ids.ts";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { PAGE_SIZE_MAX, parseQuery } from "../../../shared/domain/page.ts";
import { effectiveDefaultRegion, limitsOf, retainedSince } from "../../../shared/domain/plan.ts";
import {
  decideScheduleChange,
  nameTaken,
  nextInstant,
  tooManyActive,
} from "../../../shared/domain/schedule.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import type { TargetRules } from "../../../shared/domain/target.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { readLedger, readLedgerPlace } from "../../../shared/store/queue/ledger.ts";
import { type KeyToTake, keepAnswer } from "../../../shared/store/resources/idempotency.ts";
import { findAskedJobs } from "../../../shared/store/resources/jobs.ts";
import { putSchedule } from "../../../shared/store/resources/schedule-by-name.ts";
import { listSchedules, PAGE_BYTES_MAX } from "../../../shared/store/resources/schedule-list.ts";
import {
  changeSchedule,
  countActiveSchedules,
  createSchedule,
  type DecideChange,
  deleteSchedule,
  findSchedule,
  findScheduleByName,
  type ScheduleRow,
  type ScheduleToCreate,
} from "../../../shared/store/resources/schedules.ts";
import type { ApiAnswer } from "../request/answer.ts";
import { BODY_BYTES_MAX } from "../request/body.ts";
import { QuotaExceeded } from "../request/errors.ts";
import { startSlicedWork } from "../request/sliced-work.ts";
import type { JobCreation } from "./job-creation.ts";
import { newJobText, PAYLOAD_ANSWER_BYTES_MAX } from "./jobs.ts";
import { keptAnswer } from "./kept-answer.ts";
import { createOneAtATime } from "./one-at-a-time.ts";
import { type Pager, pageText } from "./pager.ts";
import { readPathId } from "./path-id.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

const BODY = { payload: "member", bytesMax: BODY_BYTES_MAX } as const;

export function scheduleRoutes(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  pager: Pager;
  creation: JobCreation;
  shardsPerRegion: number;
  targets: TargetRules;
}): RoutesOf<"schedules"> {
  const { db, bus, clock, pager, creation, shardsPerRegion, targets } = options;

  const inTurn = createOneAtATime();
  const activeMaxOf = ({ caller }: ApiRequest) => limitsOf(caller.project).schedules;

  /** The worker of the shard looks for due schedules itself. It is told only of those due before its next look. */
  function tellWorker({ scope }: ApiRequest, nextRunAt: number | null): void {
    if (nextRunAt === null || nextRunAt > clock.now() + WORKER_LOOKS_AHEAD_MS) return;
    const shard = shardOf(scope.projectNo, shardsPerRegion);
    sendProjectChange(bus, scope.projectNo, shard);
  }

  async function find(scope: ApiRequest["scope"], scheduleId: string): Promise<ScheduleRow> {
    return orNotFound(await findSchedule(db, scope, scheduleId));
  }

  /** A schedule as a request asks for it, with its first firing. Its id has the 128 bits of the request's id. */
  function newSchedule(
    request: ApiRequest,
    { timetable, ...asked }: AcceptedSchedule,
    paused: boolean,
  ): ScheduleToCreate {
    const { scope } = request;
    return {
      ...scope,
      ...asked,
      id: retypeId(request.cause().requestId, SCHEDULE_PREFIX),
      paused,
      nextRunAt: paused ? null : nextInstant(timetable, clock.now()),
      shard: shardOf(scope.projectNo, shardsPerRegion),
      activeMax: activeMaxOf(request),
    };
  }

  /** Changes of a schedule through this gateway wait for each other: of many at the same time only one would succeed. */
  async function change(request: ApiRequest, scheduleId: string, body: Body): Promise<ScheduleRow> {
    const { scope } = request;
    const activeMax = activeMaxOf(request);
    const decide: DecideChange = (schedule) =>
      decideScheduleChange(schedule, readScheduleUpdate(body, targets), { now: clock.now(), activeMax });
    const changed = await inTurn(JSON.stringify([scope, scheduleId]), () =>
      changeSchedule(db, scope, scheduleId, decide, activeMax, request.cause()),
    );
    if (changed === "not_found") throw resourceNotFound();
    if (changed === "name_taken") throw nameTaken();
    return changed;
  }

  /** PUTs of a name wait for each other likewise. */
  async function put(request: ApiRequest, body: Body): Promise<{ isNew: boolean; schedule: ScheduleRow }> {
    const { scope, id: name } = request;
    const activeMax = activeMaxOf(request);
    const { schedule: accepted, paused } = readSchedulePut(name, body, targets);
    const create = () => newSchedule(request, accepted, paused ?? false);
    const { timetable: _, ...wanted } = accepted;
    const change = paused === undefined ? wanted : { ...wanted, paused };
    const decide: DecideChange = (schedule) =>
      decideScheduleChange(schedule, change, { now: clock.now(), activeMax });
    const outcome = await inTurn(JSON.stringify([scope, "by-name", name]), () =>
      putSchedule(db, scope, name, { create, decide }, activeMax, request.cause()),
    );
    if (outcome.kind === "limit_exceeded") throw tooManyActive(activeMax);
    return { isNew: outcome.kind === "created", schedule: outcome.schedule };
  }

  return {
    createSchedule: {
      body: BODY,
      async create(request, key, body) {
        parseQuery(request.query, []);
        const schedule = newSchedule(request, readNewSchedule(body, targets), false);
        const text = oneText(schedule);
        const outcome = await createSchedule(
          db,
          schedule,
          request.cause(),
          key === null ? null : { ...key, answer: Buffer.from(text) },
        );
        switch (outcome) {
          case "key_taken":
            return outcome;
          case "name_taken":
            throw nameTaken();
          case "limit_exceeded":
            throw tooManyActive(schedule.activeMax);
          case "created":
            tellWorker(request, schedule.nextRunAt);
            return { status: 201, text };
        }
      },
      replay: async (_request, first) => keptAnswer(201, first),
    },
    previewSchedule: {
      body: { payload: "none", bytesMax: BODY_BYTES_MAX },
      async create(request, key, body) {
        parseQuery(request.query, []);
        const asked = readSchedulePreview(body.value, clock.now());
        const { timetable, from, count } = asked;
        const work = startSlicedWork(request.scope.projectNo);
        const firings: Firing[] = [];
        for (const firing of firingsAfter(timetable.cron, timetable.zone, from).take(count)) {
          firings.push(firing);
          await work.pause();
        }
        const active = await countActiveSchedules(db, request.scope.projectNo);
        const preview = viewPreview(asked, firings, { active, limit: activeMaxOf(request) });
        return keep(request, key, { status: 200, text: JSON.stringify(preview) });
      },
      replay: async (_request, first) => keptAnswer(200, first),
    },
    listSchedules: {
      body: null,
      answerBytesMax: SCHEDULE_PAGE_BYTES_MAX,
      async answer({ caller, scope, query }) {
        const asked = readScheduleListQuery(query);
        const { paused } = asked;
        const filters = { paused: paused === null ? null : String(paused) };
        const walk = pager.walk("GET /v2/schedules", caller, asked, filters);
        const { beforeId, rowsMax: limit } = walk;
        const found = await listSchedules(db, { ...scope, paused, beforeId, limit });
        const page = walk.page(found.rows, found.isCut);
        return { status: 200, text: await pageText(page, partsOf, scope.projectNo) };
      },
    },
    getSchedule: {
      body: null,
      answerBytesMax: PAYLOAD_ANSWER_BYTES_MAX,
      async answer({ scope, id, query }) {
        const scheduleId = readPathId(SCHEDULE_PREFIX, id);
        parseQuery(query, []);
        return { status: 200, text: oneText(await find(scope, scheduleId)) };
      },
    },
    getScheduleByName: {
      body: null,
      answerBytesMax: PAYLOAD_ANSWER_BYTES_MAX,
      async answer({ scope, id: name, query }) {
        parseQuery(query, []);
        // Postgres has no text with a NUL, and a path whose percent-encoding is broken names nothing.
        const isName = name !== "" && !name.includes("\0");
        const schedule = isName ? await findScheduleByName(db, scope, name) : null;
        return { status: 200, text: oneText(orNotFound(schedule)) };
      },
    },
    putSchedule: {
      answerBytesMax: PAYLOAD_ANSWER_BYTES_MAX,
      body: BODY,
      async answer(request, body) {
        if (request.id === "") throw resourceNotFound();
        parseQuery(request.query, []);
        const { isNew, schedule } = await put(request, body);
        tellWorker(request, schedule.nextRunAt);
        return { status: isNew ? 201 : 200, text: oneText(schedule) };
      },
    },
    updateSchedule: {
      answerBytesMax: PAYLOAD_ANSWER_BYTES_MAX,
      body: BODY,
      async answer(request, body) {
        const scheduleId = readPathId(SCHEDULE_PREFIX, request.id);
        parseQuery(request.query, []);
        const schedule = await change(request, scheduleId, body);
        tellWorker(request, schedule.nextRunAt);
        return { status: 200, text: oneText(schedule) };
      },
    },
    deleteSchedule: {
      body: null,
      async answer({ scope, id, query, cause }) {
        const scheduleId = readPathId(SCHEDULE_PREFIX, id);
        parseQuery(query, []);
        if (!(await deleteSchedule(db, scope, scheduleId, cause()))) throw resourceNotFound();
        return { status: 200, text: JSON.stringify({ id: scheduleId, deleted: true }) };
      },
    },
    listFirings: {
      body: null,
      async answer({ caller, scope, id, query }) {
        const scheduleId = readPathId(SCHEDULE_PREFIX, id);
        const asked = readFiringListQuery(query);
        // The time is read before the schedule, which may be resumed in between.
        const now = clock.now();
        const schedule = await find(scope, scheduleId);
        const walk = pager.walk(`GET /v2/schedules/${scheduleId}/firings`, caller, asked, {});
        const work = startSlicedWork(scope.projectNo);
        const place = {
          fromAt: retainedSince(caller.project.plan, now),
          ...readLedgerPlace(walk.beforeId, now),
          limit: walk.rowsMax,
        };
        const found = await readLedger(db, schedule, place, () => work.pause());
        const { rows, nextCursor } = walk.page(found.rows, found.isCut, found.endId);
        return { status: 200, text: JSON.stringify(viewList(rows.map(viewFiring), nextCursor)) };
      },
    },
    runSchedule: {
      answerBytesMax: PAYLOAD_ANSWER_BYTES_MAX,
      body: null,
      async create(request, key) {
        const { scope, caller } = request;
        const scheduleId = readPathId(SCHEDULE_PREFIX, request.id);
        parseQuery(request.query, []);
        const schedule = await find(scope, scheduleId);
        const cause = request.cause();
        const id = retypeId(cause.requestId, JOB_PREFIX);
        const job = {
          id,
          ...scope,
          region: effectiveDefaultRegion(caller.project.plan, caller.project.defaultRegion),
          shard: shardOf(scope.projectNo, shardsPerRegion),
          targetUrl: schedule.targetUrl,
          payload: schedule.payload,
          runAt: idTimeMs(id),
          ...schedule.retryPolicy,
          tags: schedule.tags,
          flow: schedule.flow,
          scheduleId: schedule.id,
          cause,
          trace: request.trace(),
          ...(key === null ? {} : { key }),
        };
        const [created] = await creation.submit([job]);
        if (created?.kind === "quota_exceeded") throw new QuotaExceeded(created.clearsInMs);
        if (created?.kind === "key_taken") return "key_taken";
        return { status: 201, text: newJobText(job) };
      },
      async replay({ scope }, { jobIds }) {
        const [job] = await findAskedJobs(db, scope, jobIds);
        if (job === undefined) throw new Error("a created job is missing");
        return { status: 201, text: newJobText(job) };
      },
    },
  };

  /** Keeps the answer for its key, although the request created nothing. */
  async function keep(
    { scope }: ApiRequest,
    key: KeyToTake | null,
    answer: ApiAnswer & { text: string },
  ): Promise<ApiAnswer | "key_taken"> {
    if (key === null) return answer;
    return (await keepAnswer(db, scope, key, Buffer.from(answer.text))) ? answer : "key_taken";
  }
}

const SCHEDULE_PAGE_BYTES_MAX =
  PAGE_BYTES_MAX + PAYLOAD_ANSWER_BYTES_MAX + PAGE_SIZE_MAX * (PAYLOAD_ANSWER_BYTES_MAX - PAYLOAD_BYTES_MAX);

/** How far ahead the owner of a schedule looks, and a second until it looks again. */
const WORKER_LOOKS_AHEAD_MS = 5_000;

type Shown = Omit<ScheduleRow, "revision">;
const partsOf = (schedule: Shown) => scheduleParts({ ...schedule, createdAt: idTimeMs(schedule.id) });
const oneText = (schedule: Shown) => partsOf(schedule).join("");

function orNotFound(schedule: ScheduleRow | null): ScheduleRow {
  if (schedule === null) throw resourceNotFound();
  return schedule;
}
