import { randomBytes } from "node:crypto";
import { createIdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import type { KeyCause, OperatorCause } from "../../shared/store/resources/audit.ts";

const requestIds = createIdSource(randomBytes);

/** What a test changes as the operator that it plays. */
export function testCause(): OperatorCause {
  return { requestId: requestIds.next(REQUEST_PREFIX, Date.now()), operator: "test" };
}

/** What a test changes as a client with a key. */
export const keyCause = (): KeyCause => ({
  requestId: requestIds.next(REQUEST_PREFIX, Date.now()),
  keyNo: 0,
});
