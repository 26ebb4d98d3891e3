import { hostOfTarget } from "./target.ts";

/**
 * How many requests one delivery node has in flight to one host, over all projects. It is at least what the largest plan may
 * have in flight. Operators can lower it for a host; at 0 nothing is sent there.
 */
export const HOST_REQUESTS_MAX = 2_000;

export interface HostLimit {
  /** The host as hostOfTarget spells it. */
  host: string;
  requests: number;
}

/** A host as an operator writes it, in the spelling of `hostOfTarget`; null for a text that is more than a host. */
export function readHost(text: string): string | null {
  const host = hostOfTarget(`https://${text}/`);
  return host === "" || NOT_OF_HOSTS.test(text) || PORT.test(text) ? null : host;
}

// With these the URL parser would take only a part of the text for the host, or repair it.
const NOT_OF_HOSTS = /[\s/\\?#@%]/;
// The colons of an IPv6 address are within its brackets.
const PORT = /:[^\]]*$/;
