import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Page, Route } from "playwright-core";
import { startTarget, type Target } from "../support/target.ts";
import { findBarriers } from "./axe.ts";
import {
  loseAnswer,
  SETUP_TIMEOUT_MS,
  startConsole,
  TEST_TIMEOUT_MS,
  type TestConsole,
  untilTold,
} from "./support.ts";

setDefaultTimeout(TEST_TIMEOUT_MS);

let site: TestConsole;
let target: Target;
/** The target answers the attempts at /slow once this is resolved. */
const slowEnds = Promise.withResolvers<void>();
/** The target answers 500 to the first attempt at /twice, and answers the second once this is resolved. */
const twiceEnds = Promise.withResolvers<void>();

beforeAll(async () => {
  let isFirst = true;
  target = startTarget(async ({ path }) => {
    if (path === "/slow") await slowEnds.promise;
    if (path === "/twice" && isFirst) {
      isFirst = false;
      return new Response("not yet", { status: 500 });
    }
    if (path === "/twice") await twiceEnds.promise;
    return path === "/broken" ? new Response(HOSTILE, { status: 500 }) : new Response("ok");
  });
  site = await startConsole();
}, SETUP_TIMEOUT_MS);
afterAll(async () => {
  await site?.stop();
  await target?.stop();
});

/** A text with markup, a script, an end of a script, another direction of writing, and 4 KB without a blank. */
const HOSTILE = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script></script>\u202e${"w".repeat(3_900)}`;
const urlOf = (path: string) => target.url.replace("/hook", path);
const jobOf = (page: Page) => /job_[0-9a-z]{26}/.exec(page.url())?.[0] ?? "";

test("a job is created, found, looked into, duplicated and canceled", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  await page.getByRole("heading", { name: "No jobs yet" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);

  await page.keyboard.press("c");
  await page.getByLabel("Target URL").fill("ftp://example.com/");
  const payload = '{"order": 9007199254740993, "price": 1.10}';
  await page.getByLabel("Payload").fill(payload);
  await page.getByLabel("Tags").fill("customer:4711 invoices");
  await page.getByRole("button", { name: "Create the job" }).click();
  await page.getByRole("alert").waitFor();
  expect(await page.getByLabel("Target URL").getAttribute("aria-invalid")).toBe("true");
  expect(await page.getByLabel("Payload").inputValue()).toBe(payload);
  expect(await findBarriers(page)).toEqual([]);
  await page.getByLabel("Target URL").fill(target.url);
  await page.getByLabel("Payload").fill("[1]");
  await page.getByRole("button", { name: "Create the job" }).click();
  await page.getByText("This is no JSON object").waitFor();
  await page.getByLabel("Payload").fill(payload);
  await page.getByRole("button", { name: "Create the job" }).click();

  await page.getByText("Attempt 1 succeeded").waitFor();
  const id = jobOf(page);
  expect((await target.until((arrivals) => arrivals.length > 0)).map(({ body }) => body)).toEqual([
    payload.replaceAll(" ", ""),
  ]);
  expect(await page.getByRole("region", { name: "the payload" }).textContent()).toContain("9007199254740993");
  expect(await findBarriers(page)).toEqual([]);

  await page.getByRole("link", { name: "Duplicate" }).click();
  await page.getByLabel("Tags").waitFor();
  expect(await page.getByLabel("Tags").inputValue()).toBe("customer:4711 invoices");
  expect(await page.getByLabel("Payload").inputValue()).toContain("1.10");
  await page.getByLabel("Run at").fill("2030-01-02T03:04:05");
  const policy = { max_attempts: 7, base_seconds: 11, cap_seconds: 13 };
  await page.getByLabel("Attempts at most").fill("7");
  await page.getByLabel("First wait, in seconds").fill("11");
  await page.getByLabel("Longest wait, in seconds").fill("13");
  await page.getByRole("button", { name: "Create the job" }).click();
  await page.getByRole("heading", { name: "Waiting for its time" }).waitFor();
  const later = jobOf(page);
  expect(later).not.toBe(id);
  expect(await site.call("GET", `/v2/jobs/${later}`)).toMatchObject({ retry_policy: policy });
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Cancel the job" }).click();
  await page.locator(".badge", { hasText: "canceled" }).waitFor();
  // The keys are off while a dialog is open, and a refresh may show the badge before the dialog's own answer.
  await page.getByRole("dialog").waitFor({ state: "detached" });

  await page.keyboard.press("u");
  await page.getByText("All 2 are shown.").waitFor();
  for (const [style, form] of [
    ["utc", /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$/],
    ["local", /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/],
    ["relative", /^(?:now|\d+ (?:s|min) ago)$/],
  ] as const) {
    await page.getByLabel("Times").selectOption(style);
    expect(await page.locator("tbody time").first().textContent()).toMatch(form);
  }
  await page.getByLabel("Status").selectOption("succeeded");
  await page.getByText("This is the only one.").waitFor();
  expect(new URL(page.url()).search).toBe("?status=succeeded");
  await page.reload();
  await page.getByText("This is the only one.").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("nobody\n");
  await page.getByRole("heading", { name: "No job fits these filters" }).waitFor();
  await page.getByRole("searchbox").fill(later);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: later }).waitFor();
  await page.goBack();
  await page.getByRole("heading", { name: "No job fits these filters" }).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

/** The next round of the job's page has the timeline of before the attempt's end, and the job and its runs of after it. */
async function endWhileLoading(page: Page, id: string, end: () => void): Promise<void> {
  const ended = Promise.withResolvers<void>();
  await page.route(
    `**/v2/jobs/${id}/explain`,
    async (route) => {
      const response = await route.fetch();
      end();
      while ((await site.call<{ status: string }>("GET", `/v2/jobs/${id}`)).status !== "succeeded")
        await Bun.sleep(10);
      ended.resolve();
      await route.fulfill({ response });
    },
    { times: 1 },
  );
  const afterEnd = async (route: Route) => {
    await ended.promise;
    await route.continue();
  };
  await page.route(`**/v2/jobs/${id}`, afterEnd, { times: 1 });
  await page.route("**/v2/runs?*", afterEnd, { times: 1 });
}

test("a job that ends while its page loads is shown to its end", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", { target_url: urlOf("/slow") });
  await target.until((arrivals) => arrivals.some(({ path }) => path === "/slow"));
  await endWhileLoading(page, id, slowEnds.resolve);
  await page.goto(`${site.origin}/console/production/jobs/${id}`);
  await page.locator(".title-line .badge", { hasText: "succeeded" }).waitFor();
  await page.getByText("Attempt 1 succeeded").waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("a job that is retried and ends while its page loads is shown to its end", async () => {
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", {
    target_url: urlOf("/twice"),
    retry_policy: { max_attempts: 1 },
  });
  const { page, complaints, close } = await site.openPage(`/console/production/jobs/${id}`);
  await page.getByText("Attempt 1 failed").waitFor();
  await endWhileLoading(page, id, twiceEnds.resolve);
  await page.getByRole("button", { name: "Retry" }).click();
  await page.getByText("Attempt 2 succeeded").waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("whatever a target answers is text, and a failed job is retried", async () => {
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", {
    target_url: urlOf("/broken"),
    payload: { note: HOSTILE },
    tags: ["x".repeat(64)],
    retry_policy: { max_attempts: 1 },
  });
  const { page, complaints, close } = await site.openPage(`/console/production/jobs/${id}`);
  await page.getByText("Attempt 1 failed").waitFor();
  const shown = await page.locator(".attempt .code").first().textContent();
  expect(shown).toContain("<img src=x onerror=");
  expect(await page.locator("main img, main script").count()).toBe(0);
  expect(await page.title()).toBe(`${id} · Jobwheel`);
  expect(await isWiderThanWindow(page)).toBe(false);
  expect(await findBarriers(page)).toEqual([]);

  await page.getByRole("button", { name: "Retry" }).click();
  await page.getByText("Attempt 2 failed").waitFor();
  await page.setViewportSize({ width: 375, height: 800 });
  expect(await isWiderThanWindow(page)).toBe(false);
  await page.goto(`${site.origin}/console/production/jobs?status=failed`);
  await page.getByText("This is the only one.").waitFor();
  expect(await isWiderThanWindow(page)).toBe(false);
  expect(complaints).toEqual([]);
  await close();
});

test("a job is created once and retried once, although the answers were lost", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs/new");
  await page.getByLabel("Target URL").fill(urlOf("/broken"));
  await page.getByLabel("Attempts at most").fill("1");
  const create = () => page.getByRole("button", { name: "Create the job" }).click();
  const { id } = await loseAnswer<{ id: string }>(page, "**/v2/jobs", create);
  await create();
  await page.getByText("Attempt 1 failed").waitFor();
  expect(jobOf(page)).toBe(id);

  // A refresh between the two presses would show attempt 2, and the second press would be another retry.
  await page.getByRole("button", { name: "Live", exact: true }).click();
  await page.reload();
  const retry = () => page.getByRole("button", { name: "Retry" }).click();
  await loseAnswer(page, "**/retry", retry);
  const isOver = async () => {
    const { status, attempts } = await site.call<Record<string, unknown>>("GET", `/v2/jobs/${id}`);
    return status === "failed" && attempts === 2;
  };
  while (!(await isOver())) await Bun.sleep(100);
  await retry();
  await untilTold(page, "One more attempt has begun.");
  const runsOf = async () =>
    (await site.call<{ data: unknown[] }>("GET", `/v2/runs?job_id=${id}`)).data.length;
  expect(await runsOf()).toBe(2);

  await page.getByRole("link", { name: "Duplicate" }).click();
  const copy = await loseAnswer<{ id: string }>(page, "**/v2/jobs", create);
  await page.getByLabel("Tags").fill("changed-meanwhile");
  await create();
  await page.getByRole("link", { name: "changed-meanwhile" }).waitFor();
  expect(jobOf(page)).not.toBe(copy.id);
  expect(complaints).toEqual([]);
  await close();
});

test("the list shows what is created meanwhile, and a key that only reads is offered no change", async () => {
  const reads = await site.addKey({ scope: "read" });
  const tag = "live-list";
  const create = () =>
    site.call<{ id: string }>("POST", "/v2/jobs", {
      target_url: target.url,
      run_at: "2030-01-01T00:00:00Z",
      tags: [tag],
    });
  const { id } = await create();
  const { page, complaints, close } = await site.openPage(`/console/production/jobs?tag=${tag}`, {
    key: reads,
  });
  await page.getByText(id).waitFor();
  expect(await page.getByRole("link", { name: "Create a job" }).count()).toBe(0);
  const other = await create();
  await page.getByText(other.id).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: id }).waitFor();
  await page.getByText("A key of scope read cannot cancel, retry or create jobs.").waitFor();
  expect(await page.getByRole("button", { name: "Cancel" }).count()).toBe(0);
  expect(complaints).toEqual([]);
  await close();
});

test("a view whose answer takes longer than the wait between two refreshes asks once, and shows the answer", async () => {
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", {
    target_url: target.url,
    run_at: "2030-01-01T00:00:00Z",
    tags: ["slow-answer"],
  });
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  await page.clock.install();
  for (const [view, path] of [
    ["jobs?tag=slow-answer", "/v2/jobs"],
    [`jobs/${id}`, `/v2/jobs/${id}`],
  ] as const) {
    const held: Route[] = [];
    const isHeld = (url: URL) => url.pathname === path;
    await page.route(isHeld, (route) => void held.push(route));
    const asked = page.waitForRequest((request) => isHeld(new URL(request.url())));
    await page.goto(`${site.origin}/console/production/${view}`);
    await asked;
    // A refresh comes after 4 s, and a request may take 20 s.
    await page.clock.runFor("00:05");
    // The page's requests reach the test in their order, so it knows all that were made by now.
    await page.evaluate((url) => fetch(url), `${site.origin}/docs`);
    expect(held.length).toBe(1);
    await held[0]?.continue();
    await page.unroute(isHeld);
    await page.getByText(id).first().waitFor();
  }
  expect(complaints).toEqual([]);
  await close();
});

test("a page that was asked for before the list began anew leaves no gap in it", async () => {
  const tag = "begun-anew";
  const jobs = Array.from({ length: 60 }, () => {
    return { target_url: target.url, run_at: "2030-01-01T00:00:00Z", tags: [tag] };
  });
  await site.call("POST", "/v2/jobs/batch", { jobs });
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  const held = Promise.withResolvers<Route>();
  await page.route(
    ({ searchParams }) => searchParams.get("tag") === tag && searchParams.has("cursor"),
    (route) => held.resolve(route),
    { times: 1 },
  );
  await page.goto(`${site.origin}/console/production/jobs?tag=${tag}`);
  const route = await held.promise;
  await site.call("POST", "/v2/jobs/batch", { jobs });
  const [newest] = (await site.call<{ data: { id: string }[] }>("GET", `/v2/jobs?tag=${tag}&limit=1`)).data;
  await page.getByText(newest?.id ?? "").waitFor();
  await route.continue();
  await page.getByText(/^All \d+ are shown\.$/).waitFor();
  expect(await page.getByText(/^All \d+ are shown\.$/).textContent()).toBe("All 120 are shown.");
  expect(complaints).toEqual([]);
  await close();
});

function isWiderThanWindow(page: Page): Promise<boolean> {
  return page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
}
