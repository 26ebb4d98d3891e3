import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Page } from "playwright-core";
import { SETUP_TIMEOUT_MS, startConsole, TEST_TIMEOUT_MS, type TestConsole } from "./support.ts";

setDefaultTimeout(2 * TEST_TIMEOUT_MS);

const JOBS = 10_000;
const JOBS_AT_ONCE = 1_000;
const FRAME_MS_MAX = 50;
const WHEEL_PIXELS = 1_500;
const WHEELS = 200;
const ROUNDS = 3;
const ROW_PIXELS = 42;
const ROWS_BESIDE_WINDOW = 20;
/** The trace's event at which the page hands a frame over to be drawn. */
const FRAME_ENDS = "BeginCommitCompositorFrame";

let site: TestConsole;

beforeAll(async () => {
  site = await startConsole({ executes: false });
  const runAt = Date.parse("2030-01-01T00:00:00Z");
  for (let made = 0; made < JOBS; made += JOBS_AT_ONCE) {
    const wishes = Array.from({ length: JOBS_AT_ONCE }, (_, number) => {
      return {
        targetUrl: `https://api.example.com/orders/${made + number}`,
        runAt,
        tags: ["many", `order:${made + number}`],
      };
    });
    await site.cell.addJobs(site.project, wishes, { tell: false });
  }
}, SETUP_TIMEOUT_MS);
afterAll(() => site?.stop());

test("10,000 rows scroll, and no frame of them takes the page more than 50 ms", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  const isAll = page.getByText("All 10,000 are shown.");
  while (!(await isAll.isVisible()))
    await page.evaluate(() => scrollTo(0, document.documentElement.scrollHeight));
  expect(await page.locator("tbody .row").count()).toBeLessThan(150);
  const longestMs: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    await page.evaluate(() => scrollTo(0, 0));
    const framesMs = await trace(page, () => wheelThrough(page));
    const row = await page.locator("tbody .row").first().getAttribute("aria-rowindex");
    expect(Number(row)).toBeGreaterThan(5_000);
    expect(framesMs.length).toBeGreaterThan(WHEELS / 2);
    // Once scrolling has stopped, the page also has the rows before and behind the window.
    await page.waitForFunction(
      ([rows, height]) => document.querySelectorAll("tbody .row").length > innerHeight / height + rows,
      [ROWS_BESIDE_WINDOW, ROW_PIXELS] as const,
    );
    longestMs.push(Math.max(...framesMs));
  }
  console.log(
    `The longest frame of the page while it scrolled, in ${ROUNDS} rounds: ${longestMs.join(", ")} ms`,
  );
  // Other programs slow down one round or another; a slow frame of the page shows in every round.
  expect(Math.min(...longestMs)).toBeLessThan(FRAME_MS_MAX);
  expect(complaints).toEqual([]);
  await close();
});

/** Turns the wheel as fast as frames come. */
async function wheelThrough(page: Page): Promise<void> {
  await page.mouse.move(640, 500);
  for (let turn = 0; turn < WHEELS; turn++) {
    await page.mouse.wheel(0, WHEEL_PIXELS);
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(resolve)));
  }
}

interface TraceEvent {
  name: string;
  ph: string;
  pid: number;
  tid: number;
  /** Microseconds. */
  ts: number;
  /** Microseconds. `tdur` is the time on the processor, to which a busy machine adds nothing; some browsers lack it. */
  dur?: number;
  tdur?: number;
  args?: { name?: string; data?: { frames?: unknown } };
}

/**
 * Measures the work of the page's main thread for each frame, in whole milliseconds, by the browser's own trace: all tasks that began
 * since the frame before was handed over.
 */
async function trace(page: Page, act: () => Promise<void>): Promise<number[]> {
  const session = await page.context().newCDPSession(page);
  const events: TraceEvent[] = [];
  session.on("Tracing.dataCollected", ({ value }) => events.push(...(value as unknown as TraceEvent[])));
  await session.send("Tracing.start", {
    transferMode: "ReportEvents",
    traceConfig: {
      includedCategories: ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"],
    },
  });
  await act();
  const ended = new Promise((resolve) => session.once("Tracing.tracingComplete", resolve));
  await session.send("Tracing.end");
  await ended;
  await session.detach();
  const mains = new Set(
    events
      .filter(({ name, args }) => name === "thread_name" && args?.name === "CrRendererMain")
      .map(threadOf),
  );
  const ofPage = events.filter((event) => mains.has(threadOf(event))).sort((one, other) => one.ts - other.ts);
  const frames = [0];
  for (const { name, ph, tdur, dur } of ofPage) {
    if (name === FRAME_ENDS) frames.push(0);
    // A task comes before the frame's end within it, so its work after that end counts in the same frame.
    else if (name === "RunTask" && ph === "X") frames.push((frames.pop() ?? 0) + (tdur ?? dur ?? 0));
  }
  return frames.map((us) => Math.round(us / 1_000));
}

const threadOf = ({ pid, tid }: TraceEvent) => `${pid} ${tid}`;
