import { HOST_STATES } from "../../../shared/domain/host-state.ts";
import { type Command, listed, PAGE_OPTIONS, shown } from "../command.ts";
import { definedOf, pageOf, wordOf } from "../input.ts";

const COLUMNS = ["host", "state", "by", "since", "parked", "next_probe_at"];

export const HOST_COMMANDS: Record<string, Command> = {
  "hosts list": {
    about: "list target hosts that are down, or come back",
    options: { state: { value: "STATE", about: HOST_STATES.join(", ") }, ...PAGE_OPTIONS },
    async run(input, { client, signal }) {
      const query = { ...definedOf({ state: wordOf(input, "state", HOST_STATES) }), ...pageOf(input) };
      return listed(client().hosts.list(query, { signal }), ...COLUMNS);
    },
  },
  "hosts park": {
    about: "park what is sent to a host, until it is opened",
    operands: ["HOST"],
    run: async ({ operands: [host = ""] }, { client, signal }) =>
      shown(client().hosts.park(host, { signal })),
  },
  "hosts open": {
    about: "start what is parked at a host, slowly at first",
    operands: ["HOST"],
    run: async ({ operands: [host = ""] }, { client, signal }) =>
      shown(client().hosts.open(host, { signal })),
  },
};
