import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import type { Route } from "playwright-core";
import { createLog } from "../../shared/platform/log.ts";
import { openDatabase } from "../../shared/store/database/database.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp-proxy.ts";
import { findBarriers } from "./axe.ts";
import { PATIENCE_MS, SETUP_TIMEOUT_MS, startConsole, TEST_TIMEOUT_MS, type TestConsole } from "./support.ts";

setDefaultTimeout(TEST_TIMEOUT_MS);

const TARGET = "http://127.0.0.1:9/hook";
const LATER = "2030-01-01T00:00:00Z";
let site: TestConsole;
/** The proxy between the gateway and Postgres. */
let proxy: TcpProxy;

beforeAll(async () => {
  site = await startConsole({
    executes: false,
    async via(cell) {
      const url = new URL(cell.url);
      proxy = await startTcpProxy({ host: url.hostname, port: Number(url.port) });
      url.hostname = "127.0.0.1";
      url.port = String(proxy.port);
      return openDatabase(url.href, {
        connections: 4,
        log: createLog({ level: "silent", name: "test" }),
        connectTimeoutMs: PATIENCE_MS,
      });
    },
  });
}, SETUP_TIMEOUT_MS);
afterAll(async () => {
  await site?.stop();
  await proxy?.stop();
});

test("a key is pasted, stays in the session storage of its tab, and is gone after signing out", async () => {
  const { page, complaints, close } = await site.open();
  expect(await findBarriers(page)).toEqual([]);
  for (const [wrong, said] of [
    ["svc_live_no such key", "This is no key"],
    [`svc_live_${"a".repeat(38)}`, "This key is not accepted"],
  ] as const) {
    await page.getByLabel("API key").fill(wrong);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText(said).waitFor();
    expect(await page.getByLabel("API key").inputValue()).toBe(wrong);
  }
  await page.getByLabel("API key").fill(`  ${site.keys.production}\n`);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  expect(page.url()).toBe(`${site.origin}/console/production/overview`);
  const kept = await page.evaluate(() => [
    JSON.stringify(localStorage),
    JSON.stringify(sessionStorage),
    document.cookie,
  ]);
  expect(kept.map((text) => text.includes(site.keys.production))).toEqual([false, true, false]);
  expect(await page.content()).not.toContain(site.keys.production);
  expect(await page.locator("[data-environment]").first().getAttribute("data-environment")).toBe(
    "production",
  );
  expect(await findBarriers(page)).toEqual([]);

  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.keyboard.press("Escape");
  await page.getByLabel("Colours").selectOption("dark");
  expect(await page.locator("html").getAttribute("data-theme")).toBe("dark");
  expect(await findBarriers(page)).toEqual([]);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key").waitFor();
  expect(await page.evaluate(() => JSON.stringify(sessionStorage))).not.toContain(site.keys.production);
  await page.goto(`${site.origin}/console/production/jobs?status=failed`);
  await page.getByLabel("API key").fill(site.keys.production);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "No job fits these filters" }).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("what is typed stays when the key expires meanwhile, and is sent with the next one", async () => {
  const expiring = await site.addKey();
  const { page, complaints, close } = await site.openPage("/console/production/jobs/new", { key: expiring });
  await page.getByLabel("Target URL").fill(TARGET);
  await page.getByLabel("Run at").fill(LATER.slice(0, 19));
  await page.getByLabel("Tags").fill("typed-before");
  await site.cell.db.run("expire_key", "UPDATE api_keys SET expires_at = now() WHERE hash = $1", [
    createHash("sha256").update(expiring).digest(),
  ]);
  const isRefused = async () => {
    const { status } = await fetch(`${site.origin}/v2/project`, {
      headers: { Authorization: `Bearer ${expiring}` },
    });
    return status === 401;
  };
  while (!(await isRefused())) await Bun.sleep(100);
  await page.getByRole("button", { name: "Create the job" }).click();
  const dialog = page.getByRole("dialog", { name: "Your key is no longer accepted" });
  await dialog.waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await dialog.getByLabel("API key").fill(site.keys.production);
  await dialog.getByRole("button", { name: "Sign in" }).click();
  await dialog.waitFor({ state: "detached" });
  expect(await page.getByLabel("Tags").inputValue()).toBe("typed-before");
  await page.getByRole("button", { name: "Create the job" }).click();
  await page.getByRole("link", { name: "typed-before" }).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("an outage of Postgres is a banner, which goes away by itself, and what is shown stays", async () => {
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", {
    target_url: TARGET,
    run_at: LATER,
    tags: ["outage"],
  });
  const { page, complaints, close } = await site.openPage("/console/production/jobs?tag=outage");
  await page.getByText(id).waitFor();
  proxy.cut();
  const banner = page.locator(".banner", { hasText: "The service cannot reach its database." });
  await banner.waitFor();
  await page.getByText(id).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  proxy.mend();
  await banner.waitFor({ state: "detached" });
  const other = await site.call<{ id: string }>("POST", "/v2/jobs", {
    target_url: TARGET,
    run_at: LATER,
    tags: ["outage"],
  });
  await page.getByText(other.id).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("a page that is opened during an outage says so, and shows itself once the outage is over", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  proxy.cut();
  await page.goto(`${site.origin}/console/production/schedules`);
  await page.getByRole("heading", { name: "The project cannot be loaded" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  proxy.mend();
  await page.getByRole("heading", { name: "Schedules", level: 1 }).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("during an outage the page waits for an answer to its question before it asks again", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  await page.clock.install();
  await page.goto(`${site.origin}/console/production/jobs?tag=nobody-answers`);
  await page.getByRole("heading", { name: "No job fits these filters" }).waitFor();
  const held: Route[] = [];
  await page.route("**/v2/project", (route) => void held.push(route));
  await page.route("**/v2/jobs**", (route) => route.abort());
  await page.clock.runFor("00:05");
  const banner = page.locator(".banner");
  await banner.waitFor();
  await page.clock.runFor("00:10");
  await page.evaluate((url) => fetch(url), `${site.origin}/docs`);
  expect(held.length).toBe(1);
  await page.unroute("**/v2/jobs**");
  await held[0]?.continue();
  await banner.waitFor({ state: "detached" });
  expect(complaints).toEqual([]);
  await close();
});

test("a page that nobody looks at asks for nothing, and keeps itself up to date once it is seen", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  await page.clock.install();
  await page.goto(`${site.origin}/console/production/jobs?tag=seen`);
  await page.getByRole("heading", { name: "No job fits these filters" }).waitFor();
  // A headless browser shows every page, so the test tells the page what a hiding browser would tell it.
  const setVisibility = (state: DocumentVisibilityState) =>
    page.evaluate((now) => {
      Object.defineProperty(document, "visibilityState", { configurable: true, value: now });
      Object.defineProperty(document, "hidden", { configurable: true, value: now === "hidden" });
      document.dispatchEvent(new Event("visibilitychange"));
    }, state);
  // The leap lets the page refresh itself, so that the next refresh is due 4 s later: the page is hidden before that.
  await page.clock.pauseAt((await page.evaluate(() => Date.now())) + 60_000);
  await page.clock.runFor("00:01");
  await page.evaluate((url) => fetch(url), `${site.origin}/docs`);
  const asked: string[] = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));

  await setVisibility("hidden");
  await page.clock.runFor("10:00");
  await page.evaluate((url) => fetch(url), `${site.origin}/docs`);
  expect(asked).toEqual(["/docs"]);
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", {
    target_url: TARGET,
    run_at: LATER,
    tags: ["seen"],
  });
  await setVisibility("visible");
  await page.clock.runFor("01:00");
  await page.clock.resume();
  await page.getByText(id).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("a page that has used up its share of the requests asks again once the time to its reset is over", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/jobs");
  await page.clock.install();
  await page.route("**/v2/**", async (route) => {
    const response = await route.fetch();
    const rate = { "ratelimit-remaining": "0", "ratelimit-reset": "300" };
    await route.fulfill({ response, headers: { ...response.headers(), ...rate } });
  });
  await page.goto(`${site.origin}/console/production/jobs?tag=scarce`);
  await page.getByRole("heading", { name: "No job fits these filters" }).waitFor();
  const asked: string[] = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));

  // The page's clock goes on by itself too, so the time that is left is longer than a slow machine takes.
  await page.clock.runFor("03:00");
  await page.evaluate((url) => fetch(url), `${site.origin}/docs`);
  expect(asked).toEqual(["/docs"]);
  const body = { target_url: TARGET, run_at: LATER, tags: ["scarce"] };
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", body);
  await page.clock.runFor("03:00");
  await page.getByText(id).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("two tabs in two environments never mix", async () => {
  const jobs = { development: "", production: "" };
  for (const environment of ["development", "production"] as const) {
    const body = { target_url: TARGET, run_at: LATER, tags: ["tabs"] };
    jobs[environment] = (
      await site.call<{ id: string }>("POST", "/v2/jobs", body, site.keys[environment])
    ).id;
  }
  const context = await site.browser.newContext();
  const tabs = {
    development: await site.openPage("/console/development/jobs?tag=tabs", {
      context,
      key: site.keys.development,
    }),
    production: await site.openPage("/console/production/jobs?tag=tabs", { context }),
  };
  for (const round of ["as opened", "after both are loaded again"]) {
    for (const [environment, other] of [
      ["development", "production"],
      ["production", "development"],
    ] as const) {
      const { page } = tabs[environment];
      await page.getByText(jobs[environment]).waitFor();
      expect({ round, isMixed: (await page.content()).includes(jobs[other]) }).toEqual({
        round,
        isMixed: false,
      });
      expect(await page.locator(".environments [aria-current]").textContent()).toBe(environment);
    }
    await Promise.all([tabs.development.page.reload(), tabs.production.page.reload()]);
  }
  // A link of the other environment asks for a key of that environment, in place of the tab's own key.
  const { page } = tabs.development;
  await page.goto(`${site.origin}/console/production/jobs/${jobs.production}`);
  await page.getByText("Paste a key of that environment.").waitFor();
  await page.getByLabel("API key").fill(site.keys.production);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: jobs.production }).waitFor();
  await page.getByRole("link", { name: "development", exact: true }).click();
  await page.getByText(jobs.development).waitFor();
  expect([...tabs.development.complaints, ...tabs.production.complaints]).toEqual([]);
  await context.close();
});

test("a key for jobs alone sees jobs, and is told what it may not see", async () => {
  const key = await site.addKey({ scope: "jobs" });
  const { page, complaints, close } = await site.openPage("/console/production/overview", { key });
  await page.getByText("A key of scope jobs cannot read this.").waitFor();
  expect(await page.locator(".menu a").allTextContents()).toEqual(["Jobs", "Runs", "Bulk", "Flows"]);
  expect(await findBarriers(page)).toEqual([]);
  await page.getByRole("link", { name: "Jobs" }).first().click();
  await page.getByRole("link", { name: "Create a job" }).first().waitFor();
  expect(complaints).toEqual([]);
  await close();
});
