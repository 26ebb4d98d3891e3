import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openSettableClock } from "../../test/support/set-clock.ts";
import { thread } from "./thread.ts";

const folder = mkdtempSync(join(tmpdir(), "jobwheel-thread-"));
const clock = openSettableClock(join(folder, "clock"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Sleeps for most of 8 s, during which its clock is set. */
const SLEEPER = `
import { thread } from ${JSON.stringify(join(import.meta.dir, "thread.ts"))};
const endAt = performance.now() + 8_000;
const shown = new Set();
while (performance.now() < endAt) {
  thread.sleep(0.4);
  shown.add(Math.round((Date.now() - performance.timeOrigin - performance.now()) / 60_000));
}
console.log(JSON.stringify([...shown]));
`;

test("a sleep is no shorter than it was asked for, with its fraction", () => {
  for (const ms of [0.1, 0.4, 0.9]) {
    const begunAt = performance.now();
    thread.sleep(ms);
    expect(performance.now() - begunAt).toBeGreaterThanOrEqual(ms);
  }
});

test.skipIf(clock === null)("a clock that is set back does not hold a thread that sleeps", async () => {
  const sleeper = Bun.spawn([process.execPath, "-e", SLEEPER], {
    env: { ...process.env, ...clock?.environment },
    stdout: "pipe",
  });
  let minutes = 9;
  const setting = setInterval(() => {
    clock?.set(minutes);
    minutes = -minutes;
  }, 700);
  const shown = JSON.parse(await new Response(sleeper.stdout).text()) as number[];
  clearInterval(setting);
  expect(await sleeper.exited).toBe(0);
  expect(shown.length).toBeGreaterThan(1);
});
