import { isIP } from "node:net";
import { dns } from "bun";
import { findOriginFault, mayDial, portOf, type TargetRules } from "../../shared/domain/target.ts";
import type { Dial } from "./http/client.ts";
import { type Reaching, reach } from "./http/reach.ts";

export interface ResolvedAddress {
  address: string;
  family: 4 | 6;
}

/** Finds every address that a name stands for now, in the order in which to try them. Throws if there is none. */
export type Resolve = (hostname: string) => Promise<ResolvedAddress[]>;

const NOT_FOUND = "ENOTFOUND";

/**
 * Connects to customers' hosts. The origin is judged again, since the rules may have changed since the URL was
 * accepted. Then every address that its name stands for at this moment is judged: if only some had to be allowed, the
 * owner of the name would choose which one is dialled. The address that was judged is the one that is dialled.
 */
export function createDialler(rules: TargetRules, resolve: Resolve = resolveName): Dial {
  return (url, reached) => {
    const hostname = url.hostname.replace(/^\[|\]$/g, "");
    const port = portOf(url);
    const isSecure = url.protocol === "https:";
    let reaching: Reaching | null = null;
    let isCanceled = false;
    lookUp()
      .then((addresses) => {
        if (!isCanceled) reaching = reach(addresses, { hostname, port, isSecure }, reached);
      })
      .catch((error: Error) => {
        if (!isCanceled) reached.onFailed(error);
      });
    return {
      cancel() {
        isCanceled = true;
        reaching?.cancel();
      },
    };

    async function lookUp(): Promise<string[]> {
      const fault = findOriginFault({ protocol: url.protocol, hostname: url.hostname, port }, rules);
      if (fault !== null) throw new Error(`The target may not be dialled: its URL ${fault}.`);
      // An address in the URL needs no look-up, and has just been judged as part of the origin.
      if (isIP(hostname) !== 0) return [hostname];
      const addresses = (await resolve(hostname)).map(({ address }) => address);
      if (addresses.length === 0) throw new Error(`The name ${hostname} has no address.`);
      // The error is that of an unknown name, so that nobody learns which addresses this cell's resolver knows.
      if (!addresses.every((address) => mayDial(address, { hostname, port }, rules)))
        throw unresolved(hostname, NOT_FOUND);
      return addresses;
    }
  };
}

/**
 * Asks c-ares, which waits for any number of names at once. The system's resolver holds a thread for each name, so a
 * few names whose servers do not answer would keep all others waiting.
 */
async function resolveName(hostname: string): Promise<ResolvedAddress[]> {
  try {
    return await dns.lookup(hostname, { backend: "c-ares" });
  } catch (error) {
    const { code } = error as { code?: unknown };
    throw unresolved(hostname, String(code).replace(/^DNS_/, ""));
  }
}

const unresolved = (hostname: string, code: string) =>
  new Error(`The name ${hostname} could not be resolved (${code}).`);
