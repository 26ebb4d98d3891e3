import { randomBytes } from "node:crypto";
import { hostname, userInfo } from "node:os";
import { createIdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import type { OperatorCause } from "../../shared/store/audit.ts";
import { askTime, type Database } from "../../shared/store/database.ts";

const requestIds = createIdSource(randomBytes);

/** What a change by the person at this terminal is recorded under; each change needs one of its own. */
export async function makeCause(db: Database): Promise<OperatorCause> {
  return { requestId: requestIds.next(REQUEST_PREFIX, await askTime(db)), operator: operatorName() };
}

/** `user@host`: who became root by sudo is named as who they are. */
function operatorName(): string {
  return `${process.env.SUDO_USER || userName()}@${hostname()}`;
}

/** In a container the user need not have a name. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid ${process.getuid?.() ?? "unknown"}`;
  }
}
