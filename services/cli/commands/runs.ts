import { RUN_STATUSES } from "../../../shared/domain/run.ts";
import { type Command, listed, PAGE_OPTIONS, shown } from "../command.ts";
import { definedOf, instantOf, pageOf, wordOf } from "../input.ts";
import { scheduleIdOf } from "./schedule-id.ts";

const COLUMNS = [
  "id",
  "job_id",
  "attempt",
  "status",
  "response_status",
  "duration_ms",
  "started_at",
  "error",
];

export const RUN_COMMANDS: Record<string, Command> = {
  "runs list": {
    about: "list runs, newest first",
    options: {
      job: { value: "JOB_ID", about: "only those of this job" },
      status: { value: "STATUS", about: RUN_STATUSES.join(", ") },
      tag: { value: "TAG", about: "only those of jobs with this tag" },
      schedule: { value: "ID_OR_NAME", about: "only those of this schedule" },
      "started-after": { value: "INSTANT", about: "only later ones" },
      "started-before": { value: "INSTANT", about: "only earlier ones" },
      ...PAGE_OPTIONS,
    },
    async run(input, session) {
      const query = definedOf({
        job_id: input.option("job"),
        status: wordOf(input, "status", RUN_STATUSES),
        tag: input.option("tag"),
        schedule_id: await scheduleIdOf(input.option("schedule"), session),
        started_after: instantOf(input, "started-after", "ago"),
        started_before: instantOf(input, "started-before", "ago"),
      });
      const { client, signal } = session;
      return listed(client().runs.list({ ...query, ...pageOf(input) }, { signal }), ...COLUMNS);
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
