import { type Static, Type } from "@sinclair/typebox";
import {
  FLOW_CONCURRENCY_BOUNDS,
  FLOW_HOLDS,
  FLOW_RATE_BOUNDS,
  type FlowKeyTerms,
} from "../domain/flow-key.ts";
import { parseQuery, readPage } from "../domain/page.ts";
import { TAG_CHARACTERS_MAX, TAG_PATTERN } from "../domain/tags.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOrNull } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

const keyOf = (description: string) =>
  Type.String({
    documented: { pattern: TAG_PATTERN.source, minLength: 1, maxLength: TAG_CHARACTERS_MAX },
    description,
    examples: ["account:4711"],
  });
const CONCURRENCY = { minimum: FLOW_CONCURRENCY_BOUNDS.min, maximum: FLOW_CONCURRENCY_BOUNDS.max };
const { count, perSeconds } = FLOW_RATE_BOUNDS;
const rateFields = {
  count: Type.Integer({ minimum: count.min, maximum: count.max, description: "At most so many attempts" }),
  per_seconds: Type.Integer({
    minimum: perSeconds.min,
    maximum: perSeconds.max,
    description: "start in any window of so many seconds.",
  }),
};
const Rate = Type.Object(rateFields, {
  ...closed,
  title: "FlowRate",
  description:
    "How many attempts start in a while, retries and retries by hand included. Attempts that started before the key had a rate are not " +
    "counted, nor are those that had left the window before it was made longer.",
});

/** The flow of a job or a schedule, as it was given. */
export const FlowSchema = Type.Object(
  {
    key: keyOf("The word under which the limits hold. `.` and `..` are refused."),
    concurrency: Type.Optional(
      Type.Integer({
        ...CONCURRENCY,
        description: "At most so many attempts of the key are in progress, over all regions.",
      }),
    ),
    rate: Type.Optional(Rate),
    hold: Type.Optional(
      wordOf(
        FLOW_HOLDS,
        "`attempt`, which is the default: each attempt takes its place of `concurrency` anew. `job`: the job keeps its place from its " +
          "first attempt until it is over, the waits between its attempts included; with a `concurrency` of 1 the jobs of the key run " +
          "strictly one after the other, by due time and then by acceptance.",
        "FlowHold",
      ),
    ),
  },
  {
    ...closed,
    title: "Flow",
    description:
      "A limit below the project's, for all jobs of the environment with the same key. The `concurrency` and the `rate` that were given " +
      "last hold for the key, each by itself; left out, it keeps what it had. A schedule gives its own to its jobs, and each firing tells them " +
      "to the key again. A key that is pinned keeps its limits. Shown as it was given, and only where it was given.",
  },
);

export const FlowKeyParameter = Type.String({
  documented: { pattern: TAG_PATTERN.source },
  description: "Only jobs whose flow has exactly this key. In a query string a `+` is written as `%2B`.",
  examples: ["account:4711"],
});

/** A key in a path. */
export const FlowKeyId = keyOf("A flow key, percent-encoded; `%2F` stands for a slash in it.");

const orNull = <Schema extends Parameters<typeof Type.Union>[0][number]>(
  schema: Schema,
  description: string,
) => Type.Union([schema, Type.Null()], { description });
const termFields = {
  concurrency: orNull(Type.Integer(CONCURRENCY), "How many attempts may be in progress; null for no limit."),
  rate: orNull(Rate, "How many attempts may start in a while; null for no limit."),
  paused: Type.Boolean({ description: "True if nothing of the key starts." }),
  pinned: Type.Boolean({
    description: "True if jobs and schedules do not change its limits. Such a key is never forgotten.",
  }),
};

export const FlowKey = Type.Object(
  {
    key: keyOf("The word that jobs and schedules name."),
    ...termFields,
    in_use: Type.Integer({ minimum: 0, description: "Places of `concurrency` that are taken." }),
    waiting: Type.Integer({ minimum: 0, description: "Due attempts that wait for the key." }),
    next_start_at: orNull(
      Timestamp,
      "From when on its rate lets the next attempt start; null if it does not keep it from starting now.",
    ),
  },
  { ...closed, title: "FlowKey", description: "A flow key: its limits, and what of them is in use." },
);
export const FlowKeyList = listOf(FlowKey, "FlowKeyList");
export const FlowKeyListParameters = Type.Object(pageParameters);

export const FlowKeyUpdateRequest = Type.Partial(Type.Object(termFields, closed), {
  ...closed,
  title: "FlowKeyUpdateRequest",
  description: "What is left out keeps its value. `null` takes a limit away.",
});

/** The body of PATCH /v2/flows/{key}: the fields that it has. Throws ApiError. */
export function readFlowKeyUpdate(value: unknown): Partial<FlowKeyTerms> {
  return validateUpdate(value);
}

/** The query string of GET /v2/flows. Throws ApiError. */
export function readFlowKeyListQuery(query: string) {
  return readPage(parseQuery(query, namesOf(FlowKeyListParameters)));
}

/** A flow key as the store knows it. Instants are milliseconds since 1970. */
export interface FlowKeyFacts extends FlowKeyTerms {
  key: string;
  inUse: number;
  waiting: number;
  nextStartAt: number | null;
}

export function viewFlowKey(flow: FlowKeyFacts): Static<typeof FlowKey> {
  return {
    key: flow.key,
    concurrency: flow.concurrency,
    rate: flow.rate,
    paused: flow.paused,
    pinned: flow.pinned,
    in_use: flow.inUse,
    waiting: flow.waiting,
    next_start_at: timestampOrNull(flow.nextStartAt),
  };
}

const validateUpdate = validatorOf(FlowKeyUpdateRequest);
