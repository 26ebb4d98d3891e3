import type { NewJob } from "../../../shared/client/index.ts";
import { type Input, type Option, UsageError } from "../command.ts";
import { definedOf, wordOf } from "../input.ts";

type Flow = NonNullable<NewJob["flow"]>;

const HOLDS = ["attempt", "job"] as const;

/** The options by which a job or a schedule names its flow. */
export const FLOW_OPTIONS: Record<string, Option> = {
  flow: { value: "KEY", about: "the flow key whose limits hold for it" },
  "flow-concurrency": { value: "N", about: "at most so many of the key at a time" },
  "flow-rate": {
    value: "COUNT/SECONDS",
    about: "at most so many of the key start in a while, such as 50/60",
  },
  "flow-hold": {
    value: "WORD",
    about: "keep a place for each attempt, or, with job, until the job is over: strictly in order at 1",
  },
};

/** The flow that these options name; undefined if none. Throws UsageError. */
export function readFlow(input: Input): Flow | undefined {
  const key = input.option("flow");
  const limits = definedOf({
    concurrency: input.count("flow-concurrency"),
    rate: rateOf(input, "flow-rate"),
    hold: wordOf(input, "flow-hold", HOLDS),
  });
  if (key !== undefined) return { key, ...limits };
  if (Object.keys(limits).length === 0) return undefined;
  throw new UsageError(
    "--flow must name the key of which --flow-concurrency, --flow-rate and --flow-hold tell",
  );
}

/** Reads COUNT/SECONDS. Throws UsageError. */
export function rateOf(input: Input, name: string): Flow["rate"] {
  const text = input.option(name);
  if (text === undefined) return undefined;
  const [, count, seconds] = /^([0-9]{1,9})\/([0-9]{1,9})$/.exec(text) ?? [];
  if (count === undefined || seconds === undefined)
    throw new UsageError(`--${name} must be COUNT/SECONDS such as 50/60, not ${text}`);
  return { count: Number(count), per_seconds: Number(seconds) };
}
