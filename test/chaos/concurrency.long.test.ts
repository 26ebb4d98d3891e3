import { describe, expect, test } from "bun:test";
import { until } from "../flow/support.ts";
import {
  DRAINED_MS,
  deliveries,
  expectAllDelivered,
  FROZEN,
  makeBusyProject,
  onWire,
  openCount,
  RESCUE_GRACE_MS,
  repeated,
  silentMs,
  stopAmid,
  TIMEOUT_MS,
  target,
  useBusyCell,
} from "./busy-cell.ts";

useBusyCell();

/** More time than a busy machine takes from the start of the attempts to the stop of their node. */
const BEGUN_MS_MAX = 20_000;

describe("60 slow jobs in two regions and their 60 webhooks, over two delivery nodes", () => {
  test("never overlap more than the limit while a node is frozen past its attempts' deadlines, whose permits come back 30 s after the deadlines", async () => {
    const project = await makeBusyProject();
    const held = await stopAmid(project, "SIGSTOP");
    const stoppedAt = performance.now();
    target.hold(({ recordId }) => held.has(recordId));
    await until(() => performance.now() - stoppedAt > TIMEOUT_MS, 2 * TIMEOUT_MS);
    expect(target.open.filter(({ recordId }) => held.has(recordId)).length).toBe(held.size);
    // The target has answered them. Only the frozen node could report that, so it keeps their permits.
    target.hold(() => false);
    const permitsHeld = async () => (await onWire(project)).filter(({ name }) => name === FROZEN).length;
    await until(async () => (await openCount(project)) === held.size, DRAINED_MS);
    await until(async () => (await permitsHeld()) < held.size, DRAINED_MS);
    // The attempts began up to BEGUN_MS_MAX before the node was stopped.
    expect(performance.now() - stoppedAt).toBeGreaterThan(TIMEOUT_MS + RESCUE_GRACE_MS - BEGUN_MS_MAX);
    await until(async () => (await openCount(project)) === 0, DRAINED_MS);
    const arrivedCount = target.arrivals.length;
    process.kill(deliveries[0]?.pid ?? 0, "SIGCONT");
    // The woken node has read what was sent while it was frozen, and has sent its heartbeat again.
    await until(async () => (await silentMs(FROZEN)) < 1_000);
    await expectAllDelivered(project);
    expect(target.arrivals.length).toBe(arrivedCount);
    expect(repeated("job")).toEqual([]);
  });
});
