import { test } from "bun:test";
import { expectMemoryBounded } from "./unread-answers.ts";

const TEST_TIMEOUT_MS = 600_000;

test(
  "a gateway stays below 512 MB while two projects do not read its answers for a minute, and releases them within a minute",
  async () => {
    const { baseBytes, peakBytes, backMs } = await expectMemoryBounded({ projects: 2, holdMs: 60_000 });
    console.log(
      `${baseBytes / 1e6} MB at rest, ${peakBytes / 1e6} MB at most, back after ${Math.round(backMs)} ms`,
    );
  },
  TEST_TIMEOUT_MS,
);
