import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { DueItem } from "../../shared/bus/messages.ts";
import { REGIONS, type Region } from "../../shared/domain/scope.ts";
import { setRegionsHeld } from "../../shared/store/cell/holds.ts";
import { createShards } from "../../shared/store/queue/shards.ts";
import { testCause } from "../../test/support/cause.ts";
import { type Cell, startCell } from "../../test/support/cell.ts";
import { createSilentBusSweep } from "./silent-bus.ts";

const SHARDS_PER_REGION = 8;
const TICK_EVERY_MS = 50;
const TICKS_MAX = 200;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await createShards(cell.db, REGIONS, SHARDS_PER_REGION);
});
afterAll(() => cell.stop());

describe("the sweep of a delivery node", () => {
  test("begins when no worker was heard for a while, and lets no project's backlog hide another's", async () => {
    const projects = [await cell.addProject(), await cell.addProject()];
    const wishes = Array.from({ length: 50 }, () => ({ targetUrl: "http://127.0.0.1:9/" }));
    for (const project of projects) await cell.addJobs(project, wishes, { tell: false });
    const taken: DueItem[] = [];
    let room = 0;
    const sweep = createSilentBusSweep({
      db: cell.db,
      regions: ["us-east"],
      room: () => room,
      claimAndSend: async (_region, item) => {
        taken.push(item);
        return null;
      },
    });
    room = 4;
    await sweep.tick();
    expect(taken).toEqual([]);
    for (let tick = 0; taken.length === 0 && tick < TICKS_MAX; tick++) {
      await Bun.sleep(TICK_EVERY_MS);
      await sweep.tick();
    }
    const counts = projects.map(({ no }) => taken.filter(({ projectNo }) => projectNo === no).length);
    expect(counts).toEqual([2, 2]);

    sweep.heardWorker(["us-east"]);
    taken.length = 0;
    await sweep.tick();
    expect(taken).toEqual([]);
  });

  test("leaves out held regions, whose claims Postgres would refuse at every look", async () => {
    const project = await cell.addProject();
    for (const region of ["eu-central", "ap-southeast"] as const)
      await cell.addJobs(project, [{ targetUrl: "http://127.0.0.1:9/", region }], { tell: false });
    const taken: Region[] = [];
    const sweep = createSilentBusSweep({
      db: cell.db,
      regions: ["eu-central", "ap-southeast"],
      room: () => 4,
      claimAndSend: async (region) => {
        taken.push(region);
        return null;
      },
    });
    await setRegionsHeld(cell.db, ["eu-central"], true, testCause());
    for (let tick = 0; taken.length === 0 && tick < TICKS_MAX; tick++) {
      await Bun.sleep(TICK_EVERY_MS);
      await sweep.tick();
    }
    expect(taken).toEqual(["ap-southeast"]);
    await setRegionsHeld(cell.db, ["eu-central"], false, testCause());
    await sweep.tick();
    expect(taken).toContain("eu-central");
  });

  test("takes nothing while the node has no room", async () => {
    const taken: DueItem[] = [];
    const sweep = createSilentBusSweep({
      db: cell.db,
      regions: ["us-west"],
      room: () => 0,
      claimAndSend: async (_region, item) => {
        taken.push(item);
        return null;
      },
    });
    await sweep.tick();
    expect(taken).toEqual([]);
  });
});
