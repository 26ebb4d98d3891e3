import { randomBytes } from "node:crypto";
import { createIdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import type { KeyCause, OperatorCause } from "../../shared/store/resources/audit.ts";

const requestIds = createIdSource(randomBytes);

/** The cause of a test's change, made as an operator. */
export function testCause(): OperatorCause {
  return { requestId: requestIds.next(REQUEST_PREFIX, Date.now()), operator: "test" };
}

/** The cause of a test's change, made as a client with a key. */
export const keyCause = (): KeyCause => ({
  requestId: requestIds.next(REQUEST_PREFIX, Date.now()),
  keyNo: 0,
});
