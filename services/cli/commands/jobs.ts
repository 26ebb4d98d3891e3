import type { Job, JobExplanation } from "../../../shared/client/index.ts";
import { KEY_LIFE_HOURS } from "../../../shared/domain/idempotency.ts";
import { JOB_STATUSES, RETRY_POLICY_BOUNDS } from "../../../shared/domain/job.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import {
  type Command,
  listed,
  type Output,
  PAGE_OPTIONS,
  type Session,
  shown,
  tableOf,
  UsageError,
} from "../command.ts";
import { definedOf, instantOf, pageOf, wordOf } from "../input.ts";
import { FLOW_OPTIONS, readFlow } from "./flow-options.ts";
import { PAYLOAD_OPTION, readPayload } from "./payload.ts";
import { scheduleIdOf } from "./schedule-id.ts";
import { watch } from "./watch.ts";

const { maxAttempts } = RETRY_POLICY_BOUNDS;
const LIST_COLUMNS = ["id", "status", "attempts", "region", "created_at", "target_url"];
const RUN_COLUMNS = ["attempt", "status", "response_status", "duration_ms", "started_at", "error"];
/** The longest page. */
const RUNS_MAX = 200;

export const JOB_COMMANDS: Record<string, Command> = {
  "jobs create": {
    about: "create a job; --watch waits for its end",
    operands: ["TARGET_URL"],
    options: {
      payload: PAYLOAD_OPTION,
      "run-at": { value: "INSTANT", about: "when to run; without it at once" },
      region: { value: "REGION", about: REGIONS.join(", ") },
      tag: { value: "TAG", about: "a word to find it by", multiple: true },
      "max-attempts": {
        value: "N",
        about: `${maxAttempts.min} to ${maxAttempts.max}; without it ${maxAttempts.default}`,
      },
      ...FLOW_OPTIONS,
      "idempotency-key": {
        value: "KEY",
        about: `the same request again within ${KEY_LIFE_HOURS} hours makes no second job`,
      },
      watch: { about: "wait for its end" },
    },
    async run(input, session) {
      const [target_url = ""] = input.operands;
      const attempts = input.count("max-attempts");
      const created = session.client().jobs.create(
        {
          target_url,
          ...definedOf({
            payload: await readPayload(input, session),
            run_at: instantOf(input, "run-at", "from now"),
            region: wordOf(input, "region", REGIONS),
            tags: input.options("tag"),
            flow: readFlow(input),
            retry_policy: attempts === undefined ? undefined : { max_attempts: attempts },
          }),
        },
        { signal: session.signal, idempotencyKey: input.option("idempotency-key") },
      );
      if (!input.has("watch")) return shown(created);
      const { id } = await created;
      if (!input.has("json")) session.stderr.write(`${id} is created\n`);
      return watchJob(id, session);
    },
  },
  "jobs get": {
    about: "show a job",
    operands: ["JOB_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().jobs.get(id, { signal })),
  },
  "jobs list": {
    about: "list jobs, newest first",
    options: {
      status: { value: "STATUS", about: JOB_STATUSES.join(", ") },
      region: { value: "REGION", about: REGIONS.join(", ") },
      tag: { value: "TAG", about: "only those with this tag" },
      "flow-key": { value: "KEY", about: "only those of this flow key" },
      schedule: { value: "ID_OR_NAME", about: "only those of this schedule" },
      "created-after": { value: "INSTANT", about: "only later ones" },
      "created-before": { value: "INSTANT", about: "only earlier ones" },
      ...PAGE_OPTIONS,
    },
    async run(input, session) {
      const query = definedOf({
        status: wordOf(input, "status", JOB_STATUSES),
        region: wordOf(input, "region", REGIONS),
        tag: input.option("tag"),
        flow_key: input.option("flow-key"),
        schedule_id: await scheduleIdOf(input.option("schedule"), session),
        created_after: instantOf(input, "created-after", "ago"),
        created_before: instantOf(input, "created-before", "ago"),
      });
      const { client, signal } = session;
      return listed(client().jobs.list({ ...query, ...pageOf(input) }, { signal }), ...LIST_COLUMNS);
    },
  },
  "jobs cancel": {
    about: "cancel a job; an attempt in progress runs to its end",
    operands: ["JOB_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().jobs.cancel(id, { signal })),
  },
  "jobs watch": {
    about: "wait for a job's end; exits with 1 unless it has succeeded",
    operands: ["JOB_ID"],
    run: ({ operands: [id = ""] }, session) => watchJob(id, session),
  },
  "jobs explain": {
    about: "say why a job waits, and what has happened to it",
    operands: ["JOB_ID"],
    async run(input, session) {
      const [id = ""] = input.operands;
      const { signal } = session;
      const { result, answer } = await session.client().jobs.explain(id, { signal }).withAnswer();
      const errors = input.has("json") ? new Map() : await readErrors(result, session);
      const rows = result.timeline.map(({ at, event, ...rest }) => {
        const error = event === "ended" && "run_id" in rest ? errors.get(rest.run_id) : undefined;
        const told = Object.entries({ ...rest, ...definedOf({ error }) });
        return [at, event, told.map(([name, value]) => `${name} ${value ?? "-"}`).join(", ")];
      });
      const why = sentenceOf(result, errors);
      return {
        json: answer.text,
        text: { columns: [], rows: why === undefined ? rows : [["now", "waits", why], ...rows] },
      };
    },
  },
  "jobs retry": {
    about: "begin one more attempt of a job that has failed",
    operands: ["JOB_ID"],
    async run({ operands: [id = ""] }, { client, signal }) {
      const [last] = (await client().runs.list({ job_id: id, limit: 1 }, { signal })).data;
      if (last === undefined) throw new UsageError(`${id} has no run that could be tried again`);
      return shown(client().runs.retry(last.id, { signal }));
    },
  },
};

/** The errors of a job's runs, by run; none if no attempt has failed. */
async function readErrors(
  { job_id, timeline }: JobExplanation,
  { client, signal }: Session,
): Promise<Map<string, string>> {
  const hasFailed = timeline.some((entry) => entry.event === "ended" && entry.status !== "succeeded");
  if (!hasFailed) return new Map();
  const { data } = await client().runs.list({ job_id, limit: RUNS_MAX }, { signal });
  return new Map(data.flatMap(({ id, error }) => (error?.trim() ? [[id, error.trim()]] : [])));
}

/** Why the job waits; after a failed attempt, with the error of that attempt. */
function sentenceOf({ waiting, timeline }: JobExplanation, errors: Map<string, string>): string | undefined {
  const last = timeline.findLast((entry) => entry.event === "ended");
  const error = waiting?.for === "backoff" && last !== undefined ? errors.get(last.run_id) : undefined;
  return error === undefined ? waiting?.message : waiting?.message.replace(/\.$/, () => `: ${error}`);
}

async function watchJob(id: string, session: Session): Promise<Output> {
  const { client, signal } = session;
  const job = await watch<Job>(session, {
    id,
    ask: () => client().jobs.get(id, { signal }).withAnswer(),
    isOver: ({ status }) => status !== "queued" && status !== "running",
    say: ({ status, attempts }) => `is ${status}, attempts so far: ${attempts}`,
  });
  const runs = (await client().runs.list({ job_id: id }, { signal })).data.toReversed();
  return {
    json: `{"job":${job.answer.text},"runs":${JSON.stringify(runs)}}`,
    text: tableOf(runs, ...RUN_COLUMNS),
    hint: `${id} ${job.result.status}`,
    exitCode: job.result.status === "succeeded" ? 0 : 1,
  };
}
