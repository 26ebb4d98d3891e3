import type { ProjectNo } from "../../domain/scope.ts";
import type { Transaction } from "../database/database.ts";

/**
 * Makes other transactions that compare a count of the project with its limit wait until this transaction ends. Claims and
 * settlements do not ask for this lock.
 */
export async function lockProject(tx: Transaction, projectNo: ProjectNo): Promise<void> {
  await tx.run("lock_project", "SELECT FROM projects WHERE no = $1 FOR NO KEY UPDATE", [projectNo]);
}
