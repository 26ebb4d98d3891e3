import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomUUID } from "node:crypto";
import fc from "fast-check";
import { ATTEMPT_PREFIX, DELIVERY_PREFIX, idToUuid, uuidToId } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { addEndpoint, failedDelivery, setStatus } from "../delivery-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { settleDeliveries } from "./delivery-settle.ts";

setDefaultTimeout(600_000);

const HOUR_MS = 3_600_000;
const WINDOW_HOURS = 48;
/** The hours of every story count from here. Attempts of the same hour begin at the very same instant. */
const BEGAN_AT = Date.now() - 1_000 * HOUR_MS;
const STORIES = 120;
const ENDPOINTS_MAX = 50;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

/** A step of an endpoint's story. Hours pass between the steps; attempts end in any order, alone or together. */
type Step =
  | { kind: "pass"; hours: number }
  | { kind: "begin"; byHand?: boolean }
  | { kind: "end"; which: { index: number; end: End }[] }
  | { kind: "enable" };

/** A failure by our own fault says nothing about the endpoint. */
type End = "succeeded" | "failed" | "our_fault";

const steps = fc.array(
  fc.oneof(
    {
      weight: 3,
      arbitrary: fc.record({ kind: fc.constant("pass" as const), hours: fc.integer({ min: 1, max: 30 }) }),
    },
    {
      weight: 4,
      arbitrary: fc.record({
        kind: fc.constant("begin" as const),
        byHand: fc.oneof(
          { weight: 4, arbitrary: fc.constant(false) },
          { weight: 1, arbitrary: fc.constant(true) },
        ),
      }),
    },
    {
      weight: 5,
      arbitrary: fc.record({
        kind: fc.constant("end" as const),
        which: fc.array(
          fc.record({
            index: fc.nat(9),
            end: fc.oneof(
              { weight: 1, arbitrary: fc.constant("succeeded" as const) },
              { weight: 4, arbitrary: fc.constant("failed" as const) },
              { weight: 1, arbitrary: fc.constant("our_fault" as const) },
            ),
          }),
          { minLength: 1, maxLength: 3 },
        ),
      }),
    },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("enable" as const) }) },
  ),
  { minLength: 10, maxLength: 40, size: "max" },
);

/** An attempt that begins between two failures succeeds after both: from then on only the later failure counts. */
const LATE_SUCCESS: Step[] = [
  { kind: "begin" },
  { kind: "pass", hours: 5 },
  { kind: "begin" },
  { kind: "pass", hours: 5 },
  { kind: "begin" },
  { kind: "end", which: [{ index: 0, end: "failed" }] },
  { kind: "end", which: [{ index: 1, end: "failed" }] },
  { kind: "end", which: [{ index: 0, end: "succeeded" }] },
  { kind: "pass", hours: 48 },
  { kind: "begin" },
  { kind: "end", which: [{ index: 0, end: "failed" }] },
];

interface Attempt {
  id: string;
  startedHour: number;
  byHand: boolean;
  end: End | null;
}

/**
 * "An endpoint is disabled when an attempt fails and everything sent to it has failed since an attempt that began at
 * least 48 h ago", word for word: some attempt began so long ago, and it and all that began with it or later have
 * failed. An attempt that failed by our fault or by hand is neither failure nor success. An endpoint enabled again
 * begins anew.
 */
const hasFailed = ({ end, byHand }: Attempt): boolean => end === "failed" && !byHand;
const isToBeDisabled = (attempts: readonly Attempt[], hour: number): boolean =>
  attempts.some(
    (first) =>
      hasFailed(first) &&
      hour - first.startedHour >= WINDOW_HOURS &&
      attempts.every((later) => later.startedHour < first.startedHour || later.end !== "succeeded"),
  );

test("an endpoint is disabled when everything has failed for 48 hours and not else, however its attempts overlap", async () => {
  let project = await store.addProject();
  let endpointCount = 0;
  await fc.assert(
    fc.asyncProperty(steps, async (story) => {
      if (endpointCount++ % ENDPOINTS_MAX === 0) project = await store.addProject();
      await tell(project, story);
    }),
    { numRuns: STORIES, examples: [[LATE_SUCCESS]] },
  );
});

async function tell(project: ProjectNo, story: readonly Step[]): Promise<void> {
  const endpoint = await addEndpoint(store, project);
  let attempts: Attempt[] = [];
  // Attempts that began before the endpoint was disabled. They end like others and say nothing about it.
  let earlier: Attempt[] = [];
  let hour = 0;
  let isEnabled = true;
  for (const step of story) {
    switch (step.kind) {
      case "pass":
        hour += step.hours;
        break;
      case "begin":
        if (isEnabled) attempts.push(await begin(project, endpoint, hour, step.byHand ?? false));
        break;
      case "enable":
        if (isEnabled) break;
        await setStatus(store, project, endpoint, "enabled");
        earlier = [...earlier, ...attempts];
        attempts = [];
        isEnabled = true;
        break;
      case "end": {
        const open = [...earlier, ...attempts].filter(({ end }) => end === null);
        const ending = new Set<Attempt>();
        for (const { index, end } of step.which) {
          const attempt = open[index % open.length];
          if (attempt === undefined) continue;
          attempt.end = end;
          ending.add(attempt);
        }
        const isTold = attempts.some((attempt) => ending.has(attempt) && hasFailed(attempt));
        const isDisabling = isEnabled && isTold && isToBeDisabled(attempts, hour);
        const told = await end(project, ending, hour);
        expect({ hour, isDisabling: told.isDisabling }).toEqual({ hour, isDisabling });
        if (isDisabling) isEnabled = false;
        const [row] = await store.query("SELECT enabled FROM webhooks WHERE id = $1", [idToUuid(endpoint)]);
        expect(row).toEqual({ enabled: isEnabled });
      }
    }
  }
}

/** Puts an attempt of a new delivery on the wire as a claim at that hour would have. */
async function begin(project: ProjectNo, endpoint: string, hour: number, byHand: boolean): Promise<Attempt> {
  const id = randomUUID();
  await store.query(
    `WITH taken AS (UPDATE flows SET production_webhooks = production_webhooks + 1 WHERE project_no = $1)
     INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, node_id,
                                  attempt_id, started_at, first_started_at, by_hand)
     SELECT $1, 1, 0, $2, id, $2, generation, $4, $2, began.at, began.at, $6
       FROM webhooks CROSS JOIN (SELECT $5::timestamptz AS at) began WHERE id = $3`,
    [project, id, idToUuid(endpoint), nodeId, new Date(BEGAN_AT + hour * HOUR_MS), byHand],
  );
  return { id, startedHour: hour, byHand, end: null };
}

/** Settles as if it were that hour and some minutes: the window is wider by as much as has passed since. */
async function end(project: ProjectNo, ending: ReadonlySet<Attempt>, hour: number) {
  const windowMs = Date.now() - (BEGAN_AT + (hour + 0.5) * HOUR_MS) + WINDOW_HOURS * HOUR_MS;
  const settled = await settleDeliveries(
    store.db,
    [...ending].map(({ id, end }) => ({
      projectNo: project,
      environment: "production",
      region: "us-east",
      shard: 0,
      deliveryId: uuidToId(DELIVERY_PREFIX, id),
      attemptId: uuidToId(ATTEMPT_PREFIX, id),
      status: "succeeded",
      responseStatus: 200,
      error: null,
      isOurFault: end === "our_fault",
      durationMs: 5,
      next: { status: "succeeded" },
      ...(end === "succeeded" ? {} : failedDelivery("over")),
    })),
    windowMs,
  );
  expect(settled.items).not.toContain(null);
  return { isDisabling: settled.items.some((item) => item?.isDisabling) };
}
