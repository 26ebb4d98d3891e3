import type { Static } from "@sinclair/typebox";
import { HOSTS_PARKED_BY_HAND_MAX } from "../../domain/host-state.ts";
import { Host, HostId, HostList, HostListParameters } from "../host.ts";
import { NEXT_CURSOR_EXAMPLE } from "../list.ts";
import { operation } from "./operation.ts";

const DOWN_EXAMPLE: Static<typeof Host> = {
  host: "api.example.com",
  state: "down",
  by: "breaker",
  since: "2026-11-21T06:12:25.328Z",
  parked: 480,
  next_probe_at: "2026-11-21T06:13:05.328Z",
};
const PARKED_EXAMPLE: Static<typeof Host> = { ...DOWN_EXAMPLE, by: "hand", next_probe_at: null };
const OPENING_EXAMPLE: Static<typeof Host> = { ...PARKED_EXAMPLE, state: "opening" };

export const HOST_OPERATIONS = {
  listHosts: operation({
    method: "GET",
    path: "/v2/hosts",
    resource: "hosts",
    summary: "List target hosts that are down or come back",
    description:
      "By their names, in ascending order of bytes. The service finds hosts that are down for projects with `park_failing_hosts`.",
    query: HostListParameters,
    response: {
      schema: HostList,
      examples: { firstPage: { data: [DOWN_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  parkHost: operation({
    method: "POST",
    path: "/v2/hosts/{host}/park",
    id: HostId,
    resource: "hosts",
    summary: "Park what is sent to a host",
    description:
      "Attempts of the environment's jobs at this host are parked, however the host answers, until it is opened; no probe follows. It works " +
      "without `park_failing_hosts` as well. Parking a host that is parked by hand changes nothing. An environment has at most " +
      `${HOSTS_PARKED_BY_HAND_MAX.toLocaleString("en")} hosts that are parked by hand.`,
    response: { schema: Host, examples: { parked: PARKED_EXAMPLE } },
    codes: ["plan_limit_exceeded"],
  }),
  openHost: operation({
    method: "POST",
    path: "/v2/hosts/{host}/open",
    id: HostId,
    resource: "hosts",
    summary: "Open a host",
    description:
      "What is parked there starts, the oldest first: one attempt in the first second, and twice as many a second after each 10 seconds. Opening " +
      "a host that is open changes nothing, and `parked` is 0.",
    response: { schema: Host, examples: { opening: OPENING_EXAMPLE } },
  }),
};
