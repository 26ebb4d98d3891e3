import { randomBytes } from "node:crypto";
import { hostname, userInfo } from "node:os";
import { createIdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import { checkName } from "../../shared/domain/name.ts";
import { askTime } from "../../shared/store/database/database.ts";
import type { OperatorCause } from "../../shared/store/resources/audit.ts";
import type { CellAccess } from "./command.ts";

/** The environment variables of a command. */
export type Variables = Readonly<Record<string, string | undefined>>;

const OPERATOR_CHARACTERS_MAX = 80;
const requestIds = createIdSource(randomBytes);

/** The cause under which a change of the operator is recorded. Each change needs one of its own. */
export async function makeCause({
  db,
  operator,
}: Pick<CellAccess, "db" | "operator">): Promise<OperatorCause> {
  return { requestId: requestIds.next(REQUEST_PREFIX, await askTime(db)), operator };
}

/**
 * The name of the person who makes the change: `--as`, else OPERATOR, else the account at the terminal. In a container
 * that account is the same for everybody, so people give their name there. Throws invalid_request.
 */
export function readOperator(as: string | undefined, variables: Variables): string {
  const name = as ?? (variables.OPERATOR || undefined);
  if (name === undefined) return findAccount(variables);
  checkName(name, as === undefined ? "OPERATOR" : "--as", OPERATOR_CHARACTERS_MAX);
  return name;
}

/** `user@host`. A person who became root by sudo has their own name. */
export function findAccount(variables: Variables): string {
  return `${variables.SUDO_USER || userName()}@${hostname()}`;
}

/** In a container the user may have no name. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid ${process.getuid?.() ?? "unknown"}`;
  }
}
