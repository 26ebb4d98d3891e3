import type { Cell } from "../../../shared/process/cell.ts";
import { listMiscountedFlows } from "../../../shared/store/cell/permits-audit.ts";

/**
 * Counts the attempts on the wire and compares them with the permits in use. The same statements change both, so they
 * are equal by design. If not, a project has more or fewer requests in flight than it may, and an operator must look.
 */
export async function auditPermits({ db, log, metrics }: Cell): Promise<void> {
  for (const flow of await listMiscountedFlows(db)) {
    metrics.permitsMiscounted.inc();
    log.error(flow, "permits.miscounted");
  }
}
