import { type Command, listed, shown, wordOf } from "../command.ts";
import { definedOf } from "./jobs.ts";

const STATUSES = ["running", "succeeded", "failed", "timed_out"] as const;
const COLUMNS = ["id", "job_id", "attempt", "status", "response_status", "duration_ms", "started_at"];

export const RUN_COMMANDS: Record<string, Command> = {
  "runs list": {
    about: "list runs, newest first",
    options: {
      job: { type: "string" },
      status: { type: "string" },
      tag: { type: "string" },
      schedule: { type: "string" },
      limit: { type: "string" },
      cursor: { type: "string" },
    },
    async run(input, { client, signal }) {
      const query = {
        job_id: input.option("job"),
        status: wordOf(input, "status", STATUSES),
        tag: input.option("tag"),
        schedule_id: input.option("schedule"),
        limit: input.count("limit"),
        cursor: input.option("cursor"),
      };
      return listed(client().runs.list(definedOf(query), { signal }), ...COLUMNS);
    },
  },
  "runs get": {
    about: "show a run",
    operands: ["RUN_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().runs.get(id, { signal })),
  },
  "runs retry": {
    about: "begin one more attempt of the run's job",
    operands: ["RUN_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().runs.retry(id, { signal })),
  },
};
