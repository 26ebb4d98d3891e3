import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { parse } from "yaml";
import { ApiError, type Client, type Schedule, type SchedulePut } from "../../../shared/client/index.ts";
import { type Command, UsageError } from "../command.ts";

/** A schedule of the file: the members of a creation's body. */
type Wanted = SchedulePut & { name: string };

interface Applied {
  name: string;
  action: "created" | "changed" | "unchanged";
  changes: { member: string; from: unknown; to: unknown }[];
}

/**
 * The values of members that the file leaves out, as PUT has them. `paused` then stays as it is. A member of `undefined` is
 * then not shown.
 */
const DEFAULTS = {
  timezone: "UTC",
  payload: {},
  retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3600 },
  overlap: undefined,
  spread_seconds: undefined,
  tags: undefined,
  flow: undefined,
} satisfies Record<Exclude<keyof SchedulePut, "cron" | "target_url" | "paused">, unknown>;

export const apply: Command = {
  about: "make the schedules of a YAML or JSON file be so, and show what changes; --dry-run changes nothing",
  operands: ["FILE"],
  options: { "dry-run": { about: "show what would change, and change nothing" } },
  async run(input, { client, signal, progress }) {
    const wanted = readWanted(input.operands[0] ?? "");
    const applied: Applied[] = [];
    for (const { name, ...schedule } of wanted) {
      progress(`${name}: ${applied.length + 1} of ${wanted.length}`);
      const present = await findSchedule(client(), name, signal);
      if (!input.has("dry-run")) await client().schedules.put(name, schedule, { signal });
      const changes = compare(present, schedule);
      const action = present === null ? "created" : changes.length > 0 ? "changed" : "unchanged";
      applied.push({ name, action, changes });
    }
    return {
      json: JSON.stringify({ dry_run: input.has("dry-run"), schedules: applied }),
      text: applied.map(textOf).join("\n"),
    };
  },
};

function readWanted(file: string): Wanted[] {
  let content: unknown;
  try {
    // JSON is YAML too.
    content = parse(readFileSync(file, "utf8"));
  } catch (error) {
    throw new UsageError(`${file}: ${error instanceof Error ? error.message : error}`);
  }
  const list = Array.isArray(content) ? content : (content as { schedules?: unknown } | null)?.schedules;
  if (!Array.isArray(list))
    throw new UsageError(`${file} must be a list of schedules, or hold one under "schedules"`);
  const names = list.map((one) => one?.name);
  const wrong = names.find((name, index) => typeof name !== "string" || names.indexOf(name) !== index);
  if (wrong === undefined && !names.includes(undefined)) return list;
  throw new UsageError(
    `${file}: each schedule needs a name of its own, and ${JSON.stringify(wrong) ?? "one has none"} is none`,
  );
}

async function findSchedule(client: Client, name: string, signal: AbortSignal): Promise<Schedule | null> {
  try {
    return await client.schedules.getByName(name, { signal });
  } catch (error) {
    if (error instanceof ApiError && error.code === "resource_not_found") return null;
    throw error;
  }
}

/** The members of the schedule that are to change. */
function compare(present: Schedule | null, wanted: SchedulePut): Applied["changes"] {
  const before = (present ?? {}) as Record<string, unknown>;
  const after = {
    ...DEFAULTS,
    ...wanted,
    retry_policy: { ...DEFAULTS.retry_policy, ...wanted.retry_policy },
  };
  return Object.entries(after)
    .filter(([member, to]) => !isDeepStrictEqual(before[member], to))
    .map(([member, to]) => ({ member, from: before[member] ?? null, to: to ?? null }));
}

function textOf({ name, action, changes }: Applied): string {
  const lines = changes.map(({ member, from, to }) =>
    action === "created"
      ? `  + ${member}: ${JSON.stringify(to)}`
      : `  ~ ${member}: ${JSON.stringify(from)} -> ${JSON.stringify(to)}`,
  );
  return [`${name} ${action}`, ...lines].join("\n");
}
