import { readFileSync } from "node:fs";
import { type Job, RawJson } from "../../../shared/client/index.ts";
import {
  type Command,
  listed,
  type Output,
  type Session,
  shown,
  tableOf,
  UsageError,
  wordOf,
} from "../command.ts";

const STATUSES = ["queued", "running", "succeeded", "failed", "canceled"] as const;
const REGIONS = ["us-east", "us-west", "eu-central", "ap-southeast"] as const;
const WATCH_EVERY_MS = 500;
const LIST_COLUMNS = ["id", "status", "attempts", "region", "created_at", "target_url"];
const RUN_COLUMNS = ["attempt", "status", "response_status", "duration_ms", "started_at", "error"];

export const JOB_COMMANDS: Record<string, Command> = {
  "jobs create": {
    about: "create a job; --watch waits for its end",
    operands: ["TARGET_URL"],
    options: {
      payload: { type: "string" },
      "run-at": { type: "string" },
      region: { type: "string" },
      tag: { type: "string", multiple: true },
      "max-attempts": { type: "string" },
      "idempotency-key": { type: "string" },
      watch: { type: "boolean" },
    },
    async run(input, session) {
      const [target_url = ""] = input.operands;
      const [runAt, tags, attempts] = [
        input.option("run-at"),
        input.options("tag"),
        input.count("max-attempts"),
      ];
      const [payload, region] = [readPayload(input.option("payload")), wordOf(input, "region", REGIONS)];
      const created = session.client().jobs.create(
        {
          target_url,
          ...(payload !== undefined && { payload }),
          ...(runAt !== undefined && { run_at: runAt }),
          ...(region !== undefined && { region }),
          ...(tags !== undefined && { tags }),
          ...(attempts !== undefined && { retry_policy: { max_attempts: attempts } }),
        },
        { signal: session.signal, idempotencyKey: input.option("idempotency-key") },
      );
      return input.has("watch") ? watch((await created).id, session) : shown(created);
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
      status: { type: "string" },
      region: { type: "string" },
      tag: { type: "string" },
      schedule: { type: "string" },
      limit: { type: "string" },
      cursor: { type: "string" },
    },
    async run(input, { client, signal }) {
      const query = {
        status: wordOf(input, "status", STATUSES),
        region: wordOf(input, "region", REGIONS),
        tag: input.option("tag"),
        schedule_id: input.option("schedule"),
        limit: input.count("limit"),
        cursor: input.option("cursor"),
      };
      return listed(client().jobs.list(definedOf(query), { signal }), ...LIST_COLUMNS);
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
    run: ({ operands: [id = ""] }, session) => watch(id, session),
  },
  "jobs explain": {
    about: "say why a job waits, and what has happened to it",
    operands: ["JOB_ID"],
    async run({ operands: [id = ""] }, { client, signal }) {
      const { result, answer } = await client().jobs.explain(id, { signal }).withAnswer();
      const rows = result.timeline.map(({ at, event, ...rest }) => [at, event, JSON.stringify(rest)]);
      const why = result.waiting?.message;
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

async function watch(id: string, { client, signal, progress }: Session): Promise<Output> {
  const isOver = ({ status }: Job) => status !== "queued" && status !== "running";
  const ask = () => client().jobs.get(id, { signal }).withAnswer();
  const begunAt = Date.now();
  progress(`${id}: waiting for its end`);
  let job = await ask();
  while (!isOver(job.result)) {
    const { status, attempts } = job.result;
    const seconds = Math.round((Date.now() - begunAt) / 1_000);
    progress(`${id} is ${status}, ${attempts} attempts so far, ${seconds} s`);
    await new Promise((resolve) => setTimeout(resolve, WATCH_EVERY_MS));
    job = await ask();
  }
  const runs = (await client().runs.list({ job_id: id }, { signal })).data.toReversed();
  return {
    json: `{"job":${job.answer.text},"runs":${JSON.stringify(runs)}}`,
    text: tableOf(runs, ...RUN_COLUMNS),
    exitCode: job.result.status === "succeeded" ? 0 : 1,
  };
}

/** JSON, `@file`, or `-` for stdin. */
function readPayload(text: string | undefined): RawJson | undefined {
  if (text === undefined) return undefined;
  const json =
    text === "-"
      ? readFileSync(0, "utf8")
      : text.startsWith("@")
        ? readFileSync(text.slice(1), "utf8")
        : text;
  try {
    return new RawJson(json);
  } catch (error) {
    throw new UsageError(`--payload: ${error instanceof Error ? error.message : error}`);
  }
}

/** The members that are given. */
export function definedOf<Query extends object>(
  query: Query,
): { [Name in keyof Query]: Exclude<Query[Name], undefined> } {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as { [Name in keyof Query]: Exclude<Query[Name], undefined> };
}
