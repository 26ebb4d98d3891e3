import { afterAll, beforeAll, expect, test } from "bun:test";
import fc from "fast-check";
import { keyCause } from "../../../test/support/cause.ts";
import { idToUuid, JOB_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { regionOf } from "../database/codes.ts";
import { changeFlowKey } from "../resources/flow-keys.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import {
  claimShortFirst,
  failedWith,
  orRefused,
  settlementOf,
  settleShortFirst,
  startStore,
  type TestStore,
} from "../test-support.ts";
import type { Claim, GrantedAttempt } from "./claim.ts";
import { HEADS } from "./flow-gates.ts";
import { emptyGateCalls } from "./gate-calls.ts";

let store: TestStore;
let nodes: number[];
beforeAll(async () => {
  store = await startStore();
  nodes = [await store.addNode(), await store.addNode()];
});
afterAll(() => store.stop());

interface Running {
  claim: Claim;
  granted: GrantedAttempt;
}
interface OpenRow {
  job_id: string;
  region: number;
  attempt: number;
  flow_key: string;
  is_due: boolean;
  is_parked: boolean;
  is_running: boolean;
  has_place: boolean | null;
  gate: string | null;
  at: string;
}
interface KeyRow {
  flow_key: string;
  concurrency: number | null;
  paused: boolean;
  in_use: number;
  waiting: string[];
}

const KEYS = ["a", "b"];
const arbitraryStep = fc.oneof(
  fc.record({
    kind: fc.constant("create" as const),
    key: fc.constantFrom(...KEYS),
    concurrency: fc.option(fc.integer({ min: 1, max: 3 }), { nil: undefined }),
    hold: fc.constantFrom("attempt" as const, "job" as const),
    region: fc.constantFrom("us-east" as const, "eu-central" as const),
    count: fc.integer({ min: 1, max: 4 }),
    isLater: fc.boolean(),
  }),
  fc.record({ kind: fc.constant("claim" as const), node: fc.nat(1), skip: fc.nat(2) }),
  fc.record({
    kind: fc.constant("settle" as const),
    which: fc.nat(),
    end: fc.constantFrom(
      "succeeded" as const,
      "failed" as const,
      "retried" as const,
      "retried later" as const,
    ),
  }),
  fc.record({ kind: fc.constant("cancel" as const), which: fc.nat() }),
  fc.record({ kind: fc.constant("retry" as const), which: fc.nat() }),
  fc.record({
    kind: fc.constant("change" as const),
    key: fc.constantFrom(...KEYS),
    concurrency: fc.constantFrom(null, 1, 2, 40),
    paused: fc.boolean(),
  }),
  fc.record({ kind: fc.constant("wait" as const) }),
);
type Step = typeof arbitraryStep extends fc.Arbitrary<infer T> ? T : never;

/** One project and what its nodes have on the wire. */
class Play {
  running: Running[] = [];
  failed: { runId: string }[] = [];
  constructor(readonly project: ProjectNo) {}

  get scope() {
    return { projectNo: this.project, environment: "production" as const };
  }

  open(): Promise<OpenRow[]> {
    return store.query<OpenRow>(
      `SELECT job_id, region, attempt, flow_key, coalesce(due_at <= now(), false) AS is_due, due_at IS NULL AND node_id IS NULL AS is_parked,
              node_id IS NOT NULL AS is_running, has_place, gate, parked_due_at::text AS at
         FROM open_jobs WHERE project_no = $1 ORDER BY parked_due_at, job_id`,
      [this.project],
    );
  }
  keys(): Promise<KeyRow[]> {
    return store.query<KeyRow>(
      "SELECT flow_key, concurrency, paused, in_use, waiting FROM flow_keys WHERE project_no = $1",
      [this.project],
    );
  }

  async take(step: Step): Promise<void> {
    switch (step.kind) {
      case "create": {
        const { key, concurrency, hold, region, count, isLater } = step;
        const flow = { key, hold, ...(concurrency === undefined ? {} : { concurrency }) };
        await store.addJobs(this.project, count, {
          flow,
          region,
          ...(isLater ? { runAt: Date.now() + 40 } : {}),
        });
        return;
      }
      case "claim": {
        const due = (await this.open()).filter(({ is_due }) => is_due).slice(step.skip);
        const claims = due.map((row) =>
          store.claimOf(this.project, uuidToId(JOB_PREFIX, row.job_id), {
            attempt: row.attempt,
            region: regionOf(row.region),
          }),
        );
        const answers = await claimShortFirst(store.db, nodes[step.node] as number, claims);
        const before = await this.keys();
        for (const [index, answer] of answers.entries())
          if (answer.kind === "granted")
            this.running.push({ claim: claims[index] as Claim, granted: answer.attempt });
        // The present limit allowed the attempts that started: nothing else has changed it.
        for (const { flow_key, concurrency, paused, in_use } of before) {
          const ofKey = answers.filter(
            (answer, index) => answer.kind === "granted" && due[index]?.flow_key === flow_key,
          );
          if (paused) expect(ofKey).toEqual([]);
          const started = answers.filter(
            (answer, index) =>
              answer.kind === "granted" && due[index]?.flow_key === flow_key && due[index].has_place === null,
          );
          if (concurrency !== null && started.length > 0) expect(in_use).toBeLessThanOrEqual(concurrency);
        }
        return;
      }
      case "settle": {
        const [ended] = this.running.splice(step.which % Math.max(this.running.length, 1), 1);
        if (ended === undefined) return;
        const wish = {
          succeeded: {},
          failed: failedWith("over"),
          retried: failedWith({ dueAt: Date.now() }),
          "retried later": failedWith({ dueAt: Date.now() + 60 }),
        }[step.end];
        await settleShortFirst(store.db, [settlementOf(ended, wish)]);
        if (step.end !== "succeeded") this.failed.push({ runId: ended.granted.runId });
        return;
      }
      case "cancel": {
        const open = await this.open();
        const row = open[step.which % Math.max(open.length, 1)];
        if (row !== undefined)
          await orRefused(cancelJob(store.db, this.scope, uuidToId(JOB_PREFIX, row.job_id), keyCause()));
        return;
      }
      case "retry": {
        const run = this.failed[step.which % Math.max(this.failed.length, 1)];
        if (run !== undefined)
          await orRefused(
            retryRun(store.db, { ...this.scope, sinceAt: 0 }, run.runId, store.newRunId(), keyCause()),
          );
        return;
      }
      case "change": {
        const { key, concurrency, paused } = step;
        await changeFlowKey(store.db, this.scope, key, { concurrency, paused }, keyCause());
        return;
      }
      case "wait":
        await Bun.sleep(50);
    }
  }

  /** Once all calls are answered, the counts are right and no attempt is parked that could start. */
  async expectRight(place: unknown): Promise<void> {
    await emptyGateCalls(store.db);
    const [open, keys] = [await this.open(), await this.keys()];
    for (const { flow_key, concurrency, paused, in_use, waiting } of keys) {
      const ofKey = open.filter((row) => row.flow_key === flow_key);
      const holders = ofKey.filter(({ has_place }) => has_place).length;
      const parked = [0, 1, 2, 3].map(
        (region) =>
          ofKey.filter((row) => row.is_parked && row.region === region && row.gate === `k${flow_key}`).length,
      );
      expect({ place, flow_key, in_use, waiting }).toEqual({
        place,
        flow_key,
        in_use: holders,
        waiting: parked.map(String),
      });
      const room = paused ? 0 : Math.min(Math.max((concurrency ?? HEADS) - in_use, 0), HEADS);
      for (const region of [0, 1, 2, 3]) {
        const queue = ofKey.filter(
          (row) => row.region === region && row.gate === `k${flow_key}` && !row.is_running,
        );
        const kept = queue.slice(0, room).filter(({ is_parked }) => is_parked);
        expect({ place, flow_key, kept }).toEqual({ place, flow_key, kept: [] });
      }
      if (!paused) expect(ofKey.filter((row) => row.gate === `p${flow_key}` && row.is_parked)).toEqual([]);
    }
  }

  /** Brings all open jobs to their end by claims and settlements in turn. */
  async expectDrains(): Promise<void> {
    for (const key of KEYS)
      await changeFlowKey(store.db, this.scope, key, { concurrency: 1, paused: false }, keyCause());
    for (let turn = 0; (await this.open()).length > 0; turn++) {
      expect(turn).toBeLessThan(1_000);
      await emptyGateCalls(store.db);
      await this.take({ kind: "claim", node: turn % 2, skip: 0 });
      await this.take({ kind: "settle", which: 0, end: "succeeded" });
      if (turn % 20 === 19) await Bun.sleep(30);
    }
  }
}

test("whatever is created, claimed, settled, canceled, retried and changed: no limit is passed, counts are right, and nothing stays parked that could start", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(arbitraryStep, { minLength: 10, maxLength: 40 }), async (steps) => {
      const play = new Play(await store.addProject({ concurrency: 1_000 }));
      for (const [index, step] of steps.entries()) {
        await play.take(step);
        await play.expectRight(`step ${index}: ${JSON.stringify(step)}`);
      }
      await play.expectDrains();
      await play.expectRight("drained");
    }),
    { numRuns: 12 },
  );
});

test("two nodes at once on a few keys leave every count right and drain", async () => {
  const play = new Play(await store.addProject({ concurrency: 1_000 }));
  const ids = [];
  for (const key of KEYS)
    ids.push(...(await store.addJobs(play.project, 30, { flow: { key, concurrency: 2, hold: "job" } })));
  const work = async (node: number) => {
    const own = new Play(play.project);
    for (let turn = 0; turn < 200; turn++) {
      await own.take({ kind: "claim", node, skip: turn % 2 });
      await own.take({ kind: "settle", which: turn, end: turn % 3 === 0 ? "retried" : "succeeded" });
      if (turn % 7 === 0) await own.take({ kind: "cancel", which: turn * 31 });
      if (turn % 5 === 0) await emptyGateCalls(store.db);
    }
    return own.running;
  };
  const left = await Promise.all([work(0), work(1)]);
  play.running = left.flat();
  await play.expectRight("after the race");
  await play.expectDrains();
  await play.expectRight("drained");
  const ended = await store.query(
    "SELECT FROM ended_jobs WHERE project_no = $1 AND job_id = ANY ($2::uuid[])",
    [play.project, ids.map(idToUuid)],
  );
  expect(ended.length).toBe(ids.length);
});
