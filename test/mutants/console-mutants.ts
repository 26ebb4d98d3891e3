import type { Mutant } from "./mutants.ts";

const DATA = "services/console/app/data";

/** Faults of the console. */
export const CONSOLE_MUTANTS: readonly Mutant[] = [
  {
    name: "a page that nobody looks at goes on asking",
    file: `${DATA}/answers.ts`,
    from: "if (document.hidden || outage.value",
    to: "if (outage.value",
    caughtBy: "test/console/session.test.ts",
  },
  {
    name: "a POST that is pressed again has another Idempotency-Key",
    file: `${DATA}/action.ts`,
    from: "if (pending.current?.text !== text) ",
    to: "",
    caughtBy: "test/console/webhooks.test.ts",
  },
  {
    name: "a POST keeps its Idempotency-Key when it is done",
    file: `${DATA}/action.ts`,
    from: "    pending.current = null;\n",
    to: "",
    caughtBy: "test/console/webhooks.test.ts",
  },
  {
    name: "a form that was changed is sent with the Idempotency-Key of before",
    file: `${DATA}/action.ts`,
    from: "if (pending.current?.text !== text) pending.current =",
    to: "pending.current ??=",
    caughtBy: "test/console/jobs.test.ts",
  },
  {
    name: "a build of the console that has failed stays so",
    file: "services/console/pages.ts",
    from: "        opened = undefined;\n",
    to: "",
    caughtBy: "test/console/serving.test.ts",
  },
];
