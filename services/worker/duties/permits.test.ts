import { expect, test } from "bun:test";
import { listMiscountedFlows } from "../../../shared/store/cell/permits-audit.ts";
import { startStore } from "../../../shared/store/test-support.ts";

test("the audit finds permits in use without an attempt on the wire, and attempts on the wire without a permit", async () => {
  const store = await startStore();
  try {
    const nodeId = await store.addNode();
    const [good, more, fewer] = [
      await store.addProject(),
      await store.addProject(),
      await store.addProject(),
    ];
    for (const project of [good, more, fewer]) {
      const [job = ""] = await store.addJobs(project, 1);
      await store.start(nodeId, project, job);
    }
    expect(await listMiscountedFlows(store.db)).toEqual([]);
    await store.query("UPDATE flows SET production_webhooks = 2 WHERE project_no = $1", [more]);
    await store.query("UPDATE flows SET production_jobs = 0 WHERE project_no = $1", [fewer]);
    expect((await listMiscountedFlows(store.db)).sort((a, b) => a.projectNo - b.projectNo)).toEqual([
      { projectNo: more, inUse: [0, 1, 0, 2], onWire: [0, 1, 0, 0] },
      { projectNo: fewer, inUse: [0, 0, 0, 0], onWire: [0, 1, 0, 0] },
    ]);
  } finally {
    await store.stop();
  }
});
