import { test } from "bun:test";
import { expectMemoryBounded } from "./unread-answers.ts";

const TEST_TIMEOUT_MS = 600_000;

test(
  "a gateway whose answers two projects do not read for a minute stays below 512 MB, and has let go of them a minute later",
  async () => {
    const { baseBytes, peakBytes, backMs } = await expectMemoryBounded({ projects: 2, holdMs: 60_000 });
    console.log(
      `${baseBytes / 1e6} MB at rest, ${peakBytes / 1e6} MB at most, back after ${Math.round(backMs)} ms`,
    );
  },
  TEST_TIMEOUT_MS,
);
