import { test } from "bun:test";
import { expectMemoryBounded } from "./unread-answers.ts";

const TEST_TIMEOUT_MS = 300_000;

test(
  "a gateway whose answers one project does not read stays below 512 MB, and has let go of them a minute later",
  async () => {
    await expectMemoryBounded({ projects: 1, holdMs: 10_000 });
  },
  TEST_TIMEOUT_MS,
);
