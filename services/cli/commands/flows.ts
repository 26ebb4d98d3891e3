import type { FlowKeyUpdate } from "../../../shared/client/index.ts";
import { type Command, type Input, listed, PAGE_OPTIONS, shown, UsageError } from "../command.ts";
import { pageOf } from "../input.ts";
import { rateOf } from "./flow-options.ts";

const NONE = "none";
const COLUMNS = ["key", "concurrency", "rate", "paused", "pinned", "in_use", "waiting", "next_start_at"];

export const FLOW_COMMANDS: Record<string, Command> = {
  "flows list": {
    about: "list flow keys: their limits, and what of them is in use",
    options: PAGE_OPTIONS,
    run: async (input, { client, signal }) =>
      listed(client().flows.list(pageOf(input), { signal }), ...COLUMNS),
  },
  "flows get": {
    about: "show a flow key",
    operands: ["KEY"],
    run: async ({ operands: [key = ""] }, { client, signal }) => shown(client().flows.get(key, { signal })),
  },
  "flows set": {
    about: "limit a flow key, or pin it; what is not given stays",
    operands: ["KEY"],
    options: {
      concurrency: { value: "N", about: "at most so many at a time, or none" },
      rate: { value: "COUNT/SECONDS", about: "at most so many start in a while, such as 50/60, or none" },
      pin: { about: "jobs and schedules do not change its limits" },
      unpin: { about: "they do again" },
    },
    async run(input, { client, signal }) {
      const [key = ""] = input.operands;
      const [pin, unpin] = [input.has("pin"), input.has("unpin")];
      if (pin && unpin) throw new UsageError("--pin and --unpin exclude each other");
      const changes: FlowKeyUpdate = {
        ...limitOf(input, "concurrency", () => input.count("concurrency")),
        ...limitOf(input, "rate", () => rateOf(input, "rate")),
        ...((pin || unpin) && { pinned: pin }),
      };
      return shown(client().flows.update(key, changes, { signal }));
    },
  },
  "flows pause": {
    about: "start nothing of a flow key",
    operands: ["KEY"],
    run: async ({ operands: [key = ""] }, { client, signal }) => shown(client().flows.pause(key, { signal })),
  },
  "flows resume": {
    about: "start what waits for a flow key again",
    operands: ["KEY"],
    run: async ({ operands: [key = ""] }, { client, signal }) =>
      shown(client().flows.resume(key, { signal })),
  },
};

function limitOf<Name extends string, Limit>(
  input: Input,
  name: Name,
  read: () => Limit | undefined,
): { [Key in Name]?: Limit | null } {
  const limit = input.option(name) === NONE ? null : read();
  return (limit === undefined ? {} : { [name]: limit }) as { [Key in Name]?: Limit | null };
}
