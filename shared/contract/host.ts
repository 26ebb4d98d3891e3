import { type Static, Type } from "@sinclair/typebox";
import { HOST_CAUSES, HOST_STATES, type HostStanding, type HostState } from "../domain/host-state.ts";
import { filterOf, parseQuery, readPage } from "../domain/page.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOf, timestampOrNull } from "./timestamp.ts";
import { namesOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

/** A host in a path. */
export const HostId = Type.String({
  description:
    "A host name or an address without a port, IPv6 in brackets; percent-encoded. Upper-case letters are lowered.",
  examples: ["api.example.com"],
});

/** The fields of a host that answers and events share. */
export const hostFields = {
  host: Type.String({ description: "A host name or an address without a port, IPv6 in brackets." }),
  state: wordOf(
    HOST_STATES,
    "`down`: nothing but probes is sent there. `opening`: what was parked starts, the oldest first, at most one attempt a second at first " +
      "and twice as many after each 10 seconds.",
    "HostState",
  ),
};
export const Parked = Type.Integer({ minimum: 0, description: "Due attempts that are parked there." });

export const Host = Type.Object(
  {
    ...hostFields,
    by: wordOf(HOST_CAUSES, "`breaker`: the service has brought it into its state. `hand`: a request has."),
    since: Timestamp,
    parked: Parked,
    next_probe_at: Type.Union([Timestamp, Type.Null()], {
      description: "When one attempt is to find out whether it is up again; null if none is to.",
    }),
  },
  { ...closed, title: "Host", description: "A target host that is down, or comes back." },
);
export const HostList = listOf(Host, "HostList");
export const HostListParameters = Type.Object({
  ...pageParameters,
  state: Type.Optional(wordOf(HOST_STATES, "Only hosts in this state.")),
});

/** The query string of GET /v2/hosts. Throws ApiError. */
export function readHostListQuery(query: string): ReturnType<typeof readPage> & { state: HostState | null } {
  const { state, ...page } = parseQuery(query, namesOf(HostListParameters));
  return { ...readPage(page), state: filterOf(state, "state", HOST_STATES) };
}

export function viewHost(host: HostStanding): Static<typeof Host> {
  return {
    host: host.host,
    state: host.state,
    by: host.by,
    since: timestampOf(host.since),
    parked: host.parked,
    next_probe_at: timestampOrNull(host.nextProbeAt),
  };
}
