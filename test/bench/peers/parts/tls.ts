import type { Part } from "./part.ts";
import { measureStored } from "./stored.ts";

const NAMES = 200;

/**
 * Stored due jobs for targets on 200 names, without TLS and with it. Between the two measurements of each, jobs are stored for
 * longer than jobwheel keeps an idle connection. So jobwheel opens connections at the beginning of both, and keeps them for the
 * jobs that follow.
 */
export const tls = {
  title: `targets on ${NAMES} names`,
  points: ({ jobs }) =>
    [false, true].map((isSecure) => ({
      wish: { names: NAMES, isSecure, isPunctual: true },
      async measure(stage) {
        const name = isSecure ? "TLS" : "plain";
        const cold = await measureStored(stage, jobs, { what: `${name}, cold` });
        return [await measureStored(stage, jobs, { what: `${name}, warm` }), cold];
      },
    })),
} satisfies Part;
