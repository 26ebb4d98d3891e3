import { describe, expect, test } from "bun:test";
import { until } from "../flow/support.ts";
import {
  db,
  deliveries,
  expectAllDelivered,
  LEASE_TTL_MS,
  LIMIT,
  LOST,
  makeBusyProject,
  repeated,
  stopAmid,
  target,
  useBusyCell,
} from "./busy-cell.ts";

useBusyCell();

describe("60 slow jobs in two regions and their 60 webhooks, over two delivery nodes", () => {
  test("never overlap more than the limit, and each arrives once", async () => {
    // All permits are in use at once, however slowly the first requests arrive.
    target.hold(() => true);
    const project = await makeBusyProject();
    await until(() => target.open.length === LIMIT);
    target.hold(() => false);
    await expectAllDelivered(project);
    expect(repeated("job")).toEqual([]);
    expect(repeated("webhook")).toEqual([]);
  });

  test("never overlap more than the limit while a node is killed, whose attempts come back by the proof of its death", async () => {
    const project = await makeBusyProject();
    const held = await stopAmid(project, "SIGKILL");
    // The killed process closed its connections.
    await until(() => target.open.every(({ recordId }) => !held.has(recordId)));
    const lostCount = target.arrivals.filter(({ recordId }) => held.has(recordId)).length;
    target.hold(() => false);
    await expectAllDelivered(project);
    expect(repeated("job")).toEqual([]);
    // An event has the same name on every attempt. Only the lost ones were sent again.
    expect(repeated("webhook").length).toBeLessThanOrEqual(lostCount);
    expect((await db.run<{ lost: number }>("lost", LOST, [project.no]))[0]?.lost).toBe(lostCount);
  });

  test("never overlap more than the limit while a node is frozen for many leases, whose attempts end once it wakes and are sent once", async () => {
    const project = await makeBusyProject();
    const held = await stopAmid(project, "SIGSTOP");
    const [stopped] = deliveries;
    const stoppedAt = performance.now();
    target.hold(({ recordId }) => held.has(recordId));
    const arrived = target.arrivals.length;
    // The other node goes on with the permits that are left; the frozen node's open requests count all the while.
    await until(() => target.arrivals.length > arrived + LIMIT);
    await until(() => performance.now() - stoppedAt > 3 * LEASE_TTL_MS);
    expect(target.open.filter(({ recordId }) => held.has(recordId)).length).toBe(held.size);
    target.hold(() => false);
    process.kill(stopped?.pid ?? 0, "SIGCONT");
    await expectAllDelivered(project);
    expect(repeated("job")).toEqual([]);
    expect(repeated("webhook")).toEqual([]);
    expect((await db.run<{ lost: number }>("lost", LOST, [project.no]))[0]?.lost).toBe(0);
  });
});
