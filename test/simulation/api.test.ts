import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomInt } from "node:crypto";
import fc from "fast-check";
import { REGIONS } from "../../shared/domain/scope.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import { changeProject } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { startTestGateway, type TestGateway } from "../support/gateway.ts";
import { ReferenceModel, type Terms } from "./reference-model.ts";
import type { Service } from "./step.ts";
import { STEPS } from "./step-mix.ts";

setDefaultTimeout(1_200_000);

/**
 * Random sequences of requests, attempts and outcomes at a real gateway over Postgres, compared with a model written
 * from the documents alone. SEED repeats a run: the seeds are printed, and a failure prints the shortest sequence
 * found.
 */

const SEQUENCES = 300;
/** Sequences that run at once, which share the database's round trips. */
const LANES = 4;
const STEPS_MAX = 80;
/** The model counts all requests of a sequence as those of one minute, so a slower sequence leaves out its last steps. */
const SEQUENCE_MS_MAX = 40_000;

const seed = Number(process.env.SEED ?? randomInt(2 ** 31));

let gateway: TestGateway;
let nodeId: number;
beforeAll(async () => {
  gateway = await startTestGateway();
  const node = { kind: "delivery", name: "simulation", regions: REGIONS, process: "test" } as const;
  nodeId = (await addNode(gateway.db, node)) ?? 0;
});
afterAll(() => gateway.stop());

const terms: fc.Arbitrary<Terms> = fc.oneof(
  fc.record({
    plan: fc.constant("pro" as const),
    rate: fc.constantFrom(12, 1_000),
    concurrency: fc.constantFrom(1, 1, 2, 100),
    runsCounted: fc.constant(0),
  }),
  fc.record({
    plan: fc.constant("hobby" as const),
    rate: fc.constant(1_000),
    concurrency: fc.constant(10),
    runsCounted: fc.constantFrom(0, 9_997, 9_999, 10_000),
  }),
);

async function begin({ plan, rate, concurrency, runsCounted }: Terms): Promise<Service> {
  const project = await gateway.addProject(plan, { requestRate: "of its plan" });
  await changeProject(
    gateway.db,
    project.id,
    { requestsPerMinuteOverride: rate, concurrencyOverride: concurrency },
    testCause(),
  );
  await gateway.query("UPDATE flows SET month_runs = $2 WHERE project_no = $1", [project.no, runsCounted]);
  const note = (answer: string) => seen.set(answer, (seen.get(answer) ?? 0) + 1);
  const endsAt = performance.now() + SEQUENCE_MS_MAX;
  return { gateway, project, nodeId, note, endsAt, repeat: async () => {} };
}

/** How often each kind of answer came. */
const seen = new Map<string, number>();
/** The answers that a run has to reach, each at least this often: without them it shows little. */
const TIMES_MIN = 1;
const REACHED = [
  ...[
    "DELETE 200",
    "DELETE invalid_request",
    "DELETE resource_not_found",
    "GET 200",
    "GET resource_not_found",
  ],
  ...[
    "GET rate_limit_exceeded",
    "PATCH 200",
    "PATCH invalid_request",
    "POST 201",
    "POST idempotency_conflict",
  ],
  ...["POST invalid_request", "POST quota_exceeded", "POST rate_limit_exceeded", "POST replayed"],
  ...["POST resource_not_found", "POST run_at_in_past", "cancel of a job before it was sent"],
  ...["cancel of a job on the wire", "claim blocked", "claim early", "claim gone", "claim granted"],
  ...["claim granted of a manual retry", "claim no_permit", "claim no_permit of a manual retry"],
];

test.concurrent.each(Array.from({ length: LANES }, (_, lane) => seed + lane))(
  "the gateway answers as the documents say, whatever came before (seed %p)",
  async (laneSeed) => {
    console.log(`seed ${laneSeed}`);
    let count = 0;
    await fc.assert(
      fc.asyncProperty(
        terms,
        fc.commands(STEPS, { maxCommands: STEPS_MAX, size: "max" }),
        async (terms, steps) => {
          count++;
          await fc.asyncModelRun(
            async () => ({ model: new ReferenceModel(terms), real: await begin(terms) }),
            steps,
          );
        },
      ),
      { seed: laneSeed, numRuns: SEQUENCES / LANES, endOnFailure: false },
    );
    expect(count).toBe(SEQUENCES / LANES);
  },
);

test("the random sequences have reached every kind of answer", () => {
  expect(REACHED.filter((answer) => (seen.get(answer) ?? 0) < TIMES_MIN)).toEqual([]);
});
