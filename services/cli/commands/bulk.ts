import type { Bulk, NewBulk } from "../../../shared/client/index.ts";
import { PER_SECOND_BOUNDS } from "../../../shared/domain/bulk.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import {
  type Command,
  type Input,
  listed,
  type Option,
  type Output,
  PAGE_OPTIONS,
  type Session,
  shown,
  UsageError,
} from "../command.ts";
import { definedOf, instantOf, pageOf, wordOf } from "../input.ts";
import { scheduleIdOf } from "./schedule-id.ts";
import { watch } from "./watch.ts";

const perSecond = PER_SECOND_BOUNDS;

const FILTER_OPTIONS: Record<string, Option> = {
  all: { about: "all jobs; in place of a filter" },
  region: { value: "REGION", about: REGIONS.join(", ") },
  tag: { value: "TAG", about: "jobs with this tag" },
  schedule: { value: "ID_OR_NAME", about: "jobs of this schedule" },
  "created-after": { value: "INSTANT", about: "jobs that were created later" },
  "created-before": { value: "INSTANT", about: "jobs that were created earlier" },
  "target-host": { value: "HOST", about: "jobs at this host" },
};
/** The options that say how a bulk operation goes on once its filter is known (`begin`). */
export const PACE_OPTIONS: Record<string, Option> = {
  "per-second": {
    value: "N",
    about: `at most so many in any second: ${perSecond.min} to ${perSecond.max}, without it ${perSecond.default}`,
  },
  "dry-run": { about: "count, and change nothing" },
  yes: { about: "do not ask" },
  watch: { about: "wait for its end" },
};
const CANCELED = ["queued", "running"] as const;

export const BULK_COMMANDS: Record<string, Command> = {
  "bulk cancel": {
    about: "cancel the jobs that match and are not over",
    options: {
      status: { value: "STATUS", about: CANCELED.join(", ") },
      ...FILTER_OPTIONS,
      ...PACE_OPTIONS,
    },
    async run(input, session) {
      const filter = { ...(await filterOf(input, session)), status: wordOf(input, "status", CANCELED) };
      return begin({ action: "cancel", filter: definedOf(filter) }, input, session);
    },
  },
  "bulk retry": {
    about: "begin one more attempt of the jobs that match and have failed",
    options: {
      ...FILTER_OPTIONS,
      "error-contains": { value: "TEXT", about: "the error of the last run has this text" },
      "response-status": { value: "N", about: "the last run was answered so" },
      ...PACE_OPTIONS,
    },
    async run(input, session) {
      const filter = {
        ...(await filterOf(input, session)),
        error_contains: input.option("error-contains"),
        response_status: input.count("response-status"),
      };
      return begin({ action: "retry", filter: definedOf(filter) }, input, session);
    },
  },
  "bulk list": {
    about: "list bulk operations, newest first",
    options: PAGE_OPTIONS,
    run: async (input, { client, signal }) =>
      listed(
        client().bulk.list(pageOf(input), { signal }),
        ...["id", "action", "status", "matched", "done", "skipped", "failed", "filter"],
      ),
  },
  "bulk get": {
    about: "show a bulk operation",
    operands: ["BULK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().bulk.get(id, { signal })),
  },
  "bulk watch": {
    about: "wait for its end; exits with 1 if it was aborted or a member has failed",
    operands: ["BULK_ID"],
    run: ({ operands: [id = ""] }, session) => watchBulk(id, session),
  },
  "bulk abort": {
    about: "end a bulk operation; what it has done stays",
    operands: ["BULK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().bulk.abort(id, { signal })),
  },
};

async function filterOf(input: Input, session: Session): Promise<NewBulk["filter"]> {
  return definedOf({
    all: input.has("all") || undefined,
    region: wordOf(input, "region", REGIONS),
    tag: input.option("tag"),
    schedule_id: await scheduleIdOf(input.option("schedule"), session),
    created_after: instantOf(input, "created-after", "ago"),
    created_before: instantOf(input, "created-before", "ago"),
    target_host: input.option("target-host"),
  });
}

/** Counts the members and asks a person before anything is done. */
export async function begin(meant: NewBulk, input: Input, session: Session): Promise<Output> {
  const { client, signal, confirm } = session;
  const { bulk } = client();
  if (Object.keys(meant.filter).length === 0)
    throw new UsageError("a filter is needed, such as --tag TAG; --all means all jobs");
  const count = async () =>
    watchBulk((await bulk.create({ ...meant, dry_run: true }, { signal })).id, session);
  if (input.has("dry-run")) return count();
  if (!input.has("yes")) {
    const question = async () => {
      const { matched } = JSON.parse((await count()).json) as Bulk;
      return `${meant.action}: ${matched} matched. Go on?`;
    };
    if (!(await confirm(question))) return { json: "", text: "Nothing was changed.", exitCode: 1 };
  }
  const paced = { ...meant, ...definedOf({ per_second: input.count("per-second") }) };
  const created = bulk.create(paced, { signal });
  return input.has("watch") ? watchBulk((await created).id, session) : shown(created);
}

async function watchBulk(id: string, session: Session): Promise<Output> {
  const { client, signal, note } = session;
  try {
    const { result, answer } = await watch<Bulk>(session, {
      id,
      ask: () => client().bulk.get(id, { signal }).withAnswer(),
      isOver: ({ ended_at }) => ended_at !== null,
      say: ({ status, matched, done, skipped, failed }) =>
        `is ${status}: ${done + skipped + failed} of ${matched ?? "…"}, ${skipped} skipped, ${failed} failed`,
    });
    const isWell = result.status !== "aborted" && result.failed === 0;
    return {
      json: answer.text,
      text: { columns: [], rows: Object.entries(result) },
      exitCode: isWell ? 0 : 1,
    };
  } catch (error) {
    if (signal.aborted) note(`${id} goes on: jobwheel bulk abort ${id} ends it`);
    throw error;
  }
}
