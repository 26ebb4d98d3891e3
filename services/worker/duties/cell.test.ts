import { expect, test } from "bun:test";
import { createMetrics } from "../../../shared/platform/metrics/metrics.ts";
import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { startStore } from "../../../shared/store/test-support.ts";
import { createCellView } from "./cell.ts";

test("the cell is shown by whoever is on duty and has seen it, and by nobody else", async () => {
  const store = await startStore();
  try {
    const nodeId = await store.addNode();
    const project = await store.addProject();
    const [job = ""] = await store.addJobs(project, 1);
    await store.start(nodeId, project, job);
    let isCut = false;
    const db: typeof store.db = {
      ...store.db,
      run: (...asked) => (isCut ? Promise.reject(new StoreUnavailable("cut off")) : store.db.run(...asked)),
    };
    const metrics = createMetrics();
    const view = createCellView(db, metrics);
    const shown = async () =>
      (await metrics.page()).text
        .split("\n")
        .filter((line) => /^jobwheel_(permits_in_use|webhook_deliveries_due|nodes)\b/.test(line));
    expect(await shown()).toEqual([]);
    await view.tick(true);
    const seen = await shown();
    expect(seen).toContain('jobwheel_permits_in_use{kind="jobs",environment="production"} 1');
    expect(seen).toContain('jobwheel_nodes{kind="delivery",state="alive"} 1');
    expect(seen).toContain("jobwheel_webhook_deliveries_due 0");
    isCut = true;
    await expect(view.tick(true)).rejects.toThrow(StoreUnavailable);
    expect(await shown()).toEqual(seen);
    await view.tick(false);
    expect(await shown()).toEqual([]);
  } finally {
    await store.stop();
  }
});
