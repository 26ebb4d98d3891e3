import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import type { Job } from "./jobs.ts";
import { type List, walkList } from "./list.ts";
import type { PayloadWriter, RawJson } from "./payload.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Schedule = Omit<ResponseOf<"getSchedule">, "payload"> & { payload: Record<string, unknown> };
export type DeletedSchedule = ResponseOf<"deleteSchedule">;
export type ScheduleListQuery = Omit<QueryOf<"listSchedules">, "paused"> & { paused?: boolean };
export type SchedulePreview = ResponseOf<"previewSchedule">;
export type Firing = ResponseOf<"listFirings">["data"][number];
export type FiringListQuery = QueryOf<"listFirings">;

export type NewSchedule = WithPayload<BodyOf<"createSchedule">>;
export type ScheduleUpdate = WithPayload<BodyOf<"updateSchedule">>;
export type SchedulePut = Omit<WithPayload<BodyOf<"putSchedule">>, "name">;
export type Timetable = Omit<BodyOf<"previewSchedule">, "from"> & {
  /** Only firings after this instant are shown; now by default. */
  from?: string | Date;
};

type WithPayload<Body> = Omit<Body, "payload"> & {
  /** A JSON object. As RawJson its numbers stay as they are written. */
  payload?: object | RawJson;
};

export interface Schedules {
  create(schedule: NewSchedule, options?: CreationOptions): Call<Schedule>;
  /** Tells when a timetable would fire, and creates nothing. */
  preview(timetable: Timetable, options?: RequestOptions): Call<SchedulePreview>;
  get(id: string, options?: RequestOptions): Call<Schedule>;
  getByName(name: string, options?: RequestOptions): Call<Schedule>;
  /**
   * Creates the schedule of this name, or changes it to this. A field that is left out, except for `paused`, gets the
   * default of a creation. The same call again changes nothing, so that every deployment can make it. The names `.` and `..`
   * and names with a backslash are refused as resource_not_found: no path leads to them.
   */
  put(name: string, schedule: SchedulePut, options?: RequestOptions): Call<Schedule>;
  list(query?: ScheduleListQuery, options?: RequestOptions): List<Schedule>;
  /**
   * A field that is left out keeps its value. A payload or a retry policy is replaced as a whole. With `sealWith` a change
   * of `payload` or `target_url` must give both (TypeError): a sealed payload opens only at the path it was sealed for.
   */
  update(id: string, changes: ScheduleUpdate, options?: RequestOptions): Call<Schedule>;
  pause(id: string, options?: RequestOptions): Call<Schedule>;
  /** Firings missed while it was paused are not replayed. */
  resume(id: string, options?: RequestOptions): Call<Schedule>;
  /**
   * The schedule never fires again; its jobs stay. Refused as resource_not_found if the schedule is gone already, even if
   * an earlier try of this same call deleted it and the answer was lost.
   */
  delete(id: string, options?: RequestOptions): Call<DeletedSchedule>;
  /** Every instant of its timetables within the plan's retention window, and whether it fired. */
  firings(id: string, query?: FiringListQuery, options?: RequestOptions): List<Firing>;
  /** Creates one job of the schedule at once, outside its timetable, even while it is paused. */
  run(id: string, options?: CreationOptions): Call<Job>;
}

export function createSchedules(send: Send, write: PayloadWriter): Schedules {
  const update = (id: string, changes: ScheduleUpdate, options?: RequestOptions) =>
    send<Schedule>({
      method: "PATCH",
      path: schedulePath(id),
      body: () => write(changes, { changes: true }),
      options,
    });

  return {
    update,
    create: (schedule, options) =>
      send({
        method: "POST",
        path: "/v2/schedules",
        body: () => write(schedule, { repeatable: options?.idempotencyKey }),
        options,
      }),
    preview: (timetable, options) =>
      send({
        method: "POST",
        path: "/v2/schedules/preview",
        body: () => JSON.stringify(timetable),
        options,
        makesNothing: true,
      }),
    get: (id, options) => send({ method: "GET", path: schedulePath(id), options }),
    getByName: (name, options) => send({ method: "GET", path: namePath(name), options }),
    put: (name, schedule, options) =>
      send({
        method: "PUT",
        path: namePath(name),
        body: () => write(schedule, { repeatable: name }),
        options,
      }),
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/schedules", query, options }),
    pause: (id, options) => update(id, { paused: true }, options),
    resume: (id, options) => update(id, { paused: false }, options),
    delete: (id, options) => send({ method: "DELETE", path: schedulePath(id), options }),
    firings: (id, query, options) =>
      walkList(send, { method: "GET", path: `${schedulePath(id)}/firings`, query, options }),
    run: (id, options) => send({ method: "POST", path: `${schedulePath(id)}/run`, options }),
  };
}

function namePath(name: string): string {
  return `/v2/schedules/by-name/${encodeURIComponent(name)}`;
}

function schedulePath(id: string): string {
  return `/v2/schedules/${encodeURIComponent(id)}`;
}
