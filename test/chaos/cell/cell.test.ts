import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { explain, isGood, summarize } from "./explain.ts";
import { FAULTS } from "./faults.ts";
import { makePlan } from "./plan.ts";
import { runCell } from "./run.ts";

setDefaultTimeout(900_000);

/** The first faults are a promotion, deaths of a worker, a delivery node and NATS, a full disk, and lost commits. */
const SEED = 10;
const SHORT = { faultsMs: 20_500, everyMs: 900 };
const OPERATION_EVERY_MS = 120;

test("a cell under a seed's faults loses, doubles and breaks nothing", async () => {
  const folder = mkdtempSync(join(tmpdir(), "chaos-"));
  const outcome = await runCell({ seed: SEED, folder, ...SHORT, operationEveryMs: OPERATION_EVERY_MS });
  console.log(summarize(outcome));
  if (!isGood(outcome)) {
    writeFileSync(join(folder, "violations.json"), JSON.stringify(outcome.violations));
    throw new Error(explain(outcome));
  }
  rmSync(folder, { recursive: true, force: true });
  // A cell that had nothing to do would pass as well.
  expect(outcome.jobs.accepted).toBeGreaterThan(50);
  expect(outcome.unchecked).toEqual(["hosts", "epochs", "bulk"]);
  expect(outcome.counts.get("the standby was promoted")).toBe(1);
});

test("a plan is the same for the same seed, and each kind of fault has its turn before any has a second one", () => {
  const wish = { faultsMs: 1_000_000, everyMs: 1_000 };
  const plan = makePlan(7, wish);
  expect(makePlan(7, wish)).toEqual(plan);
  expect(makePlan(8, wish).steps).not.toEqual(plan.steps);
  const first = plan.steps.slice(0, FAULTS.length).map(({ fault }) => fault);
  expect(new Set(first).size).toBe(FAULTS.length);
});
