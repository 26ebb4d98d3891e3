import type { Log } from "../../../shared/platform/log.ts";
import type { Count } from "../../../shared/platform/metrics/families.ts";
import { listMiscountedFlows } from "../../../shared/store/cell/permits-audit.ts";
import type { Database } from "../../../shared/store/database/database.ts";

/**
 * Counts what is on the wire and compares it with the permits in use. They are changed by the same statements, so that
 * they never differ; where they do, a project has more or fewer requests in flight than it may, and somebody must look.
 */
export async function auditPermits(db: Database, log: Log, miscounted: Count): Promise<void> {
  for (const flow of await listMiscountedFlows(db)) {
    miscounted.inc();
    log.error(flow, "permits.miscounted");
  }
}
