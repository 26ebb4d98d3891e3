import { test } from "bun:test";
import { expectMemoryBounded } from "./unread-answers.ts";

const TEST_TIMEOUT_MS = 300_000;

test(
  "a gateway stays below 512 MB while one project does not read its answers, and releases them within a minute",
  async () => {
    await expectMemoryBounded({ projects: 1, holdMs: 10_000 });
  },
  TEST_TIMEOUT_MS,
);
