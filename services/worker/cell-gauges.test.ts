import { expect, test } from "bun:test";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { StoreUnavailable } from "../../shared/store/database/database.ts";
import { startStore } from "../../shared/store/test-support.ts";
import { createCellGauges } from "./cell-gauges.ts";

test("a worker that shows the cell shows what it last saw, and one that does not shows nothing", async () => {
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
    const gauges = createCellGauges({ db, metrics });
    const shown = async () =>
      (await metrics.page()).text
        .split("\n")
        .filter((line) => /^jobwheel_(permits_in_use|webhook_deliveries_due|nodes)\b/.test(line));
    expect(await shown()).toEqual([]);
    await gauges.tick(true);
    const seen = await shown();
    expect(seen).toContain('jobwheel_permits_in_use{kind="jobs",environment="production"} 1');
    expect(seen).toContain('jobwheel_nodes{kind="delivery",state="alive"} 1');
    expect(seen).toContain("jobwheel_webhook_deliveries_due 0");
    isCut = true;
    await expect(gauges.tick(true)).rejects.toThrow(StoreUnavailable);
    expect(await shown()).toEqual(seen);
    await gauges.tick(false);
    expect(await shown()).toEqual([]);
  } finally {
    await store.stop();
  }
});
