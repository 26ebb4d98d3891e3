import { setDefaultTimeout, test } from "bun:test";
import { expectMemoryBack } from "./memory.ts";

setDefaultTimeout(900_000);

/** memory.long.test.ts does the same with 10,000. */
const ATTEMPTS = 1_000;

test(`memory and sockets are back after ${ATTEMPTS} attempts at targets of every hostile kind`, async () => {
  await expectMemoryBack(ATTEMPTS);
});
