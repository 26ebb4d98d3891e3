import type { ProjectNo } from "../../domain/scope.ts";
import type { Transaction } from "../database/database.ts";

/** Keeps what claims, settles or counts against a limit of the project waiting until the transaction ends. */
export async function lockFlow(tx: Transaction, projectNo: ProjectNo): Promise<void> {
  await tx.run("lock_flow", "SELECT FROM flows WHERE project_no = $1 FOR NO KEY UPDATE", [projectNo]);
}
