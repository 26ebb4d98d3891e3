import type { NewSchedule } from "../../../shared/client/index.ts";
import {
  type Command,
  type Input,
  listed,
  type Option,
  PAGE_OPTIONS,
  type Session,
  shown,
  tableOf,
} from "../command.ts";
import { definedOf, instantOf, pageOf, wordOf } from "../input.ts";
import { apply } from "./apply.ts";
import { begin, PACE_OPTIONS } from "./bulk.ts";
import { FLOW_OPTIONS, readFlow } from "./flow-options.ts";
import { PAYLOAD_OPTION, readPayload } from "./payload.ts";
import { isScheduleId, onSchedule } from "./schedule-id.ts";

const COLUMNS = ["id", "name", "cron", "timezone", "paused", "next_run_at", "target_url"];
/** The service refuses an instant that lies ahead of its own clock. */
const CLOCKS_APART_MS = 60_000;
const OVERLAPS = ["allow", "skip", "replace"] as const;
const CRON_OPTION = { value: "EXPRESSION", about: "such as '0 9 * * MON', with 5 fields, or 6 with seconds" };
const TIMEZONE_OPTION = { value: "ZONE", about: "such as Europe/Berlin; without it UTC" };
/** The options of members that may be given at the creation, and changed. */
const FIELD_OPTIONS: Record<string, Option> = {
  timezone: TIMEZONE_OPTION,
  payload: PAYLOAD_OPTION,
  tag: { value: "TAG", about: "a word to find its jobs by", multiple: true },
  "max-attempts": { value: "N", about: "of each job: 1 to 25, without it 5" },
  overlap: {
    value: "WORD",
    about:
      "while a job of it is not over: allow another, skip the firing, or replace those that have not started",
  },
  "spread-seconds": { value: "N", about: "each job is due up to that much later" },
  ...FLOW_OPTIONS,
};

export const SCHEDULE_COMMANDS: Record<string, Command> = {
  "schedules create": {
    about: "create a schedule",
    operands: ["NAME", "TARGET_URL"],
    options: { cron: { ...CRON_OPTION, required: true }, ...FIELD_OPTIONS },
    async run(input, session) {
      const [name = "", target_url = ""] = input.operands;
      const cron = input.option("cron") ?? "";
      const schedule = { name, target_url, cron, ...(await fieldsOf(input, session)) };
      return shown(session.client().schedules.create(schedule, { signal: session.signal }));
    },
  },
  "schedules edit": {
    about: "change a schedule; what is not given stays",
    operands: ["ID_OR_NAME"],
    options: {
      name: { value: "NAME", about: "another name" },
      "target-url": { value: "URL", about: "where its jobs go to" },
      cron: CRON_OPTION,
      ...FIELD_OPTIONS,
    },
    run: (input, session) =>
      onSchedule(input, session, async (id) => {
        const changes = {
          ...definedOf({
            name: input.option("name"),
            target_url: input.option("target-url"),
            cron: input.option("cron"),
          }),
          ...(await fieldsOf(input, session)),
        };
        return shown(session.client().schedules.update(id, changes, { signal: session.signal }));
      }),
  },
  "schedules list": {
    about: "list schedules, newest first",
    options: {
      paused: { value: "true|false", about: "only the paused, or only the others" },
      ...PAGE_OPTIONS,
    },
    async run(input, { client, signal }) {
      const paused = wordOf(input, "paused", ["true", "false"]);
      const query = { ...(paused !== undefined && { paused: paused === "true" }), ...pageOf(input) };
      return listed(client().schedules.list(query, { signal }), ...COLUMNS);
    },
  },
  "schedules get": {
    about: "show a schedule",
    operands: ["ID_OR_NAME"],
    async run({ operands: [word = ""] }, { client, signal }) {
      const { schedules } = client();
      return shown(
        isScheduleId(word) ? schedules.get(word, { signal }) : schedules.getByName(word, { signal }),
      );
    },
  },
  "schedules preview": {
    about: "say when a timetable would fire",
    options: {
      cron: { ...CRON_OPTION, required: true },
      timezone: TIMEZONE_OPTION,
      count: { value: "N", about: "how many firings" },
    },
    async run(input, { client, signal }) {
      const timetable = {
        cron: input.option("cron") ?? "",
        ...definedOf({ timezone: input.option("timezone"), count: input.count("count") }),
      };
      const { result, answer } = await client().schedules.preview(timetable, { signal }).withAnswer();
      return { json: answer.text, text: tableOf(result.firings, "at", "local_time") };
    },
  },
  "schedules apply": apply,
  "schedules pause": {
    about: "pause a schedule",
    operands: ["ID_OR_NAME"],
    run: (input, session) =>
      onSchedule(input, session, (id, options) => shown(session.client().schedules.pause(id, options))),
  },
  "schedules resume": {
    about: "resume a schedule; missed firings are not replayed",
    operands: ["ID_OR_NAME"],
    run: (input, session) =>
      onSchedule(input, session, (id, options) => shown(session.client().schedules.resume(id, options))),
  },
  "schedules run": {
    about: "make one job of a schedule at once",
    operands: ["ID_OR_NAME"],
    run: (input, session) =>
      onSchedule(input, session, (id, options) => shown(session.client().schedules.run(id, options))),
  },
  "schedules firings": {
    about: "list the instants of a schedule and whether they fired, newest first",
    operands: ["ID_OR_NAME"],
    options: PAGE_OPTIONS,
    run: (input, session) =>
      onSchedule(input, session, (id, options) =>
        listed(session.client().schedules.firings(id, pageOf(input), options), ...["at", "status", "job_id"]),
      ),
  },
  "schedules backfill": {
    about: "make the jobs of the instants that did not fire",
    operands: ["ID_OR_NAME"],
    options: {
      from: { value: "INSTANT", about: "the first instant that is meant", required: true },
      to: {
        value: "INSTANT",
        about: "instants before this one are meant; without it those up to a minute ago",
      },
      ...PACE_OPTIONS,
    },
    run: (input, session) =>
      onSchedule(input, session, (schedule_id) => {
        const [from, to] = [instantOf(input, "from", "ago") ?? "", instantOf(input, "to", "ago")];
        const filter = { schedule_id, from, to: to ?? new Date(Date.now() - CLOCKS_APART_MS).toISOString() };
        return begin({ action: "backfill", filter }, input, session);
      }),
  },
  "schedules delete": {
    about: "delete a schedule; its jobs stay",
    operands: ["ID_OR_NAME"],
    run: (input, session) =>
      onSchedule(input, session, (id, options) => shown(session.client().schedules.delete(id, options))),
  },
};

async function fieldsOf(input: Input, session: Session): Promise<Partial<NewSchedule>> {
  const attempts = input.count("max-attempts");
  return definedOf({
    timezone: input.option("timezone"),
    payload: await readPayload(input, session),
    tags: input.options("tag"),
    retry_policy: attempts === undefined ? undefined : { max_attempts: attempts },
    overlap: wordOf(input, "overlap", OVERLAPS),
    spread_seconds: input.count("spread-seconds"),
    flow: readFlow(input),
  });
}
