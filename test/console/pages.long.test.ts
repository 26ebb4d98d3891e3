import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { startTarget, type Target } from "../support/target.ts";
import { findBarriers } from "./axe.ts";
import {
  SETUP_TIMEOUT_MS,
  startConsole,
  type Tab,
  TEST_TIMEOUT_MS,
  type TestConsole,
  untilLoaded,
} from "./support.ts";

setDefaultTimeout(TEST_TIMEOUT_MS);

/** Markup, the end of a script, another direction of writing, and letters without a blank up to this length. */
const hostile = (length: number) =>
  `<img src=x onerror="document.title='owned'"></script><script>document.title='owned'</script>\u202e`.padEnd(
    length,
    "w",
  );

let site: TestConsole;
let target: Target;
let tab: Tab;
const addresses = new Map<string, string>();

beforeAll(async () => {
  target = startTarget(() => new Response(hostile(4_000), { status: 500 }));
  site = await startConsole();
  await site.call("PATCH", "/v2/project", { name: hostile(80).slice(0, 80) });
  const long = `${target.url}/${"w".repeat(1_500)}?q=%3Cscript%3E`;
  const tags = ["w".repeat(64), `${"a:b/".repeat(15)}`];
  const job = await site.call<{ id: string }>("POST", "/v2/jobs", {
    target_url: long,
    payload: { [hostile(300)]: hostile(4_000), deep: { deeper: [[[["w".repeat(500)]]]] } },
    tags,
    flow: { key: tags[1], concurrency: 1 },
    retry_policy: { max_attempts: 1 },
  });
  const schedule = await site.call<{ id: string }>("POST", "/v2/schedules", {
    name: hostile(100).slice(0, 100),
    cron: "*/30 * * * * *",
    timezone: "America/Argentina/ComodRivadavia",
    target_url: long,
    payload: { text: hostile(4_000) },
    tags,
    flow: { key: tags[1], concurrency: 1 },
  });
  const webhook = await site.call<{ id: string }>("POST", "/v2/webhooks", {
    url: long,
    events: ["job.failed"],
    description: hostile(200).slice(0, 200),
  });
  await site.call("POST", `/v2/webhooks/${webhook.id}/test`);
  const bulk = await site.call<{ id: string }>("POST", "/v2/bulk", {
    action: "retry",
    dry_run: true,
    filter: { error_contains: hostile(200).slice(0, 200), tag: tags[0] },
  });
  await site.call("POST", "/v2/keys", { name: hostile(100).slice(0, 100), scope: "read" });
  await target.until((arrivals) => arrivals.length >= 2, SETUP_TIMEOUT_MS);
  for (const [name, path] of [
    ["overview", "overview"],
    ["jobs", "jobs"],
    ["one job", `jobs/${job.id}`],
    ["a job to create", `jobs/new?from=${job.id}`],
    ["runs", "runs"],
    ["schedules", "schedules"],
    ["one schedule", `schedules/${schedule.id}`],
    ["a schedule to edit", `schedules/${schedule.id}/edit`],
    ["bulk operations", "bulk"],
    ["one bulk operation", `bulk/${bulk.id}`],
    ["a bulk operation to start", "bulk/new"],
    ["webhooks", "webhooks"],
    ["one endpoint", `webhooks/${webhook.id}`],
    ["an endpoint to edit", `webhooks/${webhook.id}/edit`],
    ["flow keys", "flows"],
    ["one flow key", `flows/${encodeURIComponent(tags[1] ?? "")}`],
    ["hosts", "hosts"],
    ["usage", "usage"],
    ["keys", "keys"],
    ["an unknown job", "jobs/job_%3Cscript%3E"],
  ] as const)
    addresses.set(name, `${site.origin}/console/production/${path}`);
  tab = await site.openPage("/console/production/jobs", { width: 1280 });
}, SETUP_TIMEOUT_MS);
afterAll(async () => {
  await tab?.close();
  await site?.stop();
  await target?.stop();
});

const NAMES = [
  ...[
    "overview",
    "jobs",
    "one job",
    "a job to create",
    "runs",
    "schedules",
    "one schedule",
    "a schedule to edit",
  ],
  ...["bulk operations", "one bulk operation", "a bulk operation to start", "webhooks", "one endpoint"],
  ...["an endpoint to edit", "flow keys", "one flow key", "hosts", "usage", "keys", "an unknown job"],
];

describe("with hostile values in every place", () => {
  test.each(NAMES)(
    "the page shows them as text, fits the window, wide and narrow, and has no barrier: %s",
    async (name) => {
      const { page } = tab;
      const found: Record<string, unknown> = {};
      for (const [colours, width] of [
        ["light", 1280],
        ["dark", 375],
      ] as const) {
        await page.setViewportSize({ width, height: 800 });
        await page.emulateMedia({ colorScheme: colours });
        await page.goto(addresses.get(name) ?? "");
        await untilLoaded(page);
        found[`${width} ${colours}`] = {
          foreign: await page.locator("#app img, #app script, #app i, #app b").count(),
          overflow: await page.evaluate(
            () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
          ),
          barriers: await findBarriers(page),
        };
        expect(await page.title()).not.toBe("owned");
      }
      const fine = { foreign: 0, overflow: 0, barriers: [] };
      expect(found).toEqual({ "1280 light": fine, "375 dark": fine });
      expect(tab.complaints).toEqual([]);
    },
  );
});
