import type { Part } from "./part.ts";
import { measureStored } from "./stored.ts";

const NAMES = 200;

/**
 * Stored due jobs for targets on 200 names, without TLS and with it. The first measurement of each opens the connections
 * and makes the handshakes. The second one uses the same connections, if the product keeps them.
 */
export const tls = {
  title: `targets on ${NAMES} names`,
  points: ({ jobs }) =>
    [false, true].map((isSecure) => ({
      wish: { names: NAMES, isSecure, isPunctual: true },
      async measure(stage) {
        const name = isSecure ? "TLS" : "plain";
        const cold = await measureStored(stage, jobs, { what: `${name}, new connections` });
        return [await measureStored(stage, jobs, { what: `${name}, kept connections` }), cold];
      },
    })),
} satisfies Part;
