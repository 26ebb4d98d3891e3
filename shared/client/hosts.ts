import type { QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import { type List, walkList } from "./list.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Host = ResponseOf<"parkHost">;
export type HostListQuery = QueryOf<"listHosts">;

/** Target hosts that are down, or come back. A host is a name or an address without a port, IPv6 in brackets. */
export interface Hosts {
  /** By host, in ascending order of bytes. */
  list(query?: HostListQuery, options?: RequestOptions): List<Host>;
  /** Parks all that is due at the host until it is opened. */
  park(host: string, options?: CreationOptions): Call<Host>;
  /** Starts all that is parked at the host, slowly at first. */
  open(host: string, options?: CreationOptions): Call<Host>;
}

export function createHosts(send: Send): Hosts {
  return {
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/hosts", query, options }),
    park: (host, options) => send({ method: "POST", path: `${hostPath(host)}/park`, options }),
    open: (host, options) => send({ method: "POST", path: `${hostPath(host)}/open`, options }),
  };
}

function hostPath(host: string): string {
  return `/v2/hosts/${encodeURIComponent(host)}`;
}
