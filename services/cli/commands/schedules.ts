import { type Command, listed, shown, tableOf, UsageError } from "../command.ts";
import { apply } from "./apply.ts";
import { definedOf } from "./jobs.ts";

const COLUMNS = ["id", "name", "cron", "timezone", "paused", "next_run_at", "target_url"];
const page = { limit: { type: "string" }, cursor: { type: "string" } } as const;

export const SCHEDULE_COMMANDS: Record<string, Command> = {
  "schedules list": {
    about: "list schedules, newest first",
    options: page,
    async run(input, { client, signal }) {
      const query = definedOf({ limit: input.count("limit"), cursor: input.option("cursor") });
      return listed(client().schedules.list(query, { signal }), ...COLUMNS);
    },
  },
  "schedules get": {
    about: "show a schedule, by its id or its name",
    operands: ["ID_OR_NAME"],
    async run({ operands: [word = ""] }, { client, signal }) {
      const { schedules } = client();
      return shown(isId(word) ? schedules.get(word, { signal }) : schedules.getByName(word, { signal }));
    },
  },
  "schedules preview": {
    about: "say when a timetable would fire",
    options: { cron: { type: "string" }, timezone: { type: "string" }, count: { type: "string" } },
    async run(input, { client, signal }) {
      const cron = input.option("cron");
      if (cron === undefined) throw new UsageError("--cron is needed, such as --cron '0 9 * * MON'");
      const timetable = {
        cron,
        ...definedOf({ timezone: input.option("timezone"), count: input.count("count") }),
      };
      const { result, answer } = await client().schedules.preview(timetable, { signal }).withAnswer();
      return { json: answer.text, text: tableOf(result.firings, "at", "local_time") };
    },
  },
  "schedules apply": apply,
  "schedules pause": {
    about: "pause a schedule",
    operands: ["SCHEDULE_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().schedules.pause(id, { signal })),
  },
  "schedules resume": {
    about: "resume a schedule; missed firings are not replayed",
    operands: ["SCHEDULE_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().schedules.resume(id, { signal })),
  },
  "schedules run": {
    about: "make one job of a schedule at once",
    operands: ["SCHEDULE_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().schedules.run(id, { signal })),
  },
  "schedules firings": {
    about: "list the instants of a schedule and whether they fired, newest first",
    operands: ["SCHEDULE_ID"],
    options: page,
    async run(input, { client, signal }) {
      const query = definedOf({ limit: input.count("limit"), cursor: input.option("cursor") });
      const [id = ""] = input.operands;
      return listed(client().schedules.firings(id, query, { signal }), "at", "status", "job_id");
    },
  },
  "schedules delete": {
    about: "delete a schedule; its jobs stay",
    operands: ["SCHEDULE_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().schedules.delete(id, { signal })),
  },
};

const isId = (word: string) => /^sch_[0-9a-z]{26}$/.test(word);
