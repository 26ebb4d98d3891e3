import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Route } from "playwright-core";
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

beforeAll(async () => {
  target = startTarget();
  site = await startConsole();
}, SETUP_TIMEOUT_MS);
afterAll(async () => {
  await site?.stop();
  await target?.stop();
});

test("a flow key is given limits, paused, and resumed, and a job says that it waits for it", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/flows");
  await page.getByRole("heading", { name: "No flow keys" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.getByLabel("Flow key").fill("account/4711");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "account/4711" }).waitFor();
  await page.getByLabel("Attempts at once").fill("0");
  await page.getByRole("button", { name: "Save the limits" }).click();
  await page.locator(".fault").waitFor();
  await page.getByLabel("Attempts at once").fill("1");
  await page.getByLabel("Starts").fill("5");
  await page.getByLabel("in so many seconds").fill("60");
  await page.getByLabel("Pinned").check();
  await page.getByRole("button", { name: "Save the limits" }).click();
  await page.getByText("5 in 60 s").waitFor();
  await page.getByText("of 1", { exact: true }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.locator(".badge", { hasText: "paused" }).waitFor();

  await page.goto(`${site.origin}/console/production/jobs/new`);
  await page.getByLabel("Target URL").fill(target.url);
  await page.getByLabel("Flow key").fill("account/4711");
  await page.getByLabel("A place is kept").selectOption("job");
  await page.getByRole("button", { name: "Create the job" }).click();
  await page.getByRole("heading", { name: "Its flow key's limit is reached" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.getByRole("link", { name: "Duplicate" }).click();
  await page.getByLabel("Flow key").waitFor();
  expect(await page.getByLabel("Flow key").inputValue()).toBe("account/4711");
  expect(await page.getByLabel("A place is kept").inputValue()).toBe("job");
  await page.goBack();
  await page.getByRole("link", { name: "account/4711" }).click();
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("link", { name: "Jobs of this key" }).click();
  await page.locator(".badge", { hasText: "succeeded" }).waitFor();
  expect(new URL(page.url()).searchParams.get("flow_key")).toBe("account/4711");
  expect(complaints).toEqual([]);
  await close();
});

test("a host is parked by hand, what is due there waits, and it goes on once the host is opened", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/hosts");
  await page.getByRole("heading", { name: "No host is down" }).waitFor();
  await page.getByLabel("Park hosts that fail").click();
  await untilTold(page, "Failing hosts are parked from now on.");
  await page.getByLabel("Host name").fill("http://127.0.0.1");
  await page.getByRole("button", { name: "Park the host" }).click();
  await page.getByRole("button", { name: "Park it" }).click();
  await page.getByRole("dialog").getByRole("alert").waitFor();
  await page.getByRole("button", { name: "Back" }).click();
  expect(await page.getByLabel("Host name").inputValue()).toBe("http://127.0.0.1");
  await page.getByLabel("Host name").fill("127.0.0.1");
  await page.getByRole("button", { name: "Park the host" }).click();
  const keys: (string | undefined)[] = [];
  page.on("request", (request) => {
    if (request.url().endsWith("/park")) keys.push(request.headers()["idempotency-key"]);
  });
  const park = () => page.getByRole("button", { name: "Park it" }).click();
  await loseAnswer(page, "**/park", park);
  await park();
  await page.locator(".badge", { hasText: "down" }).waitFor();
  expect(keys).toEqual([keys[0], keys[0]]);
  const { id } = await site.call<{ id: string }>("POST", "/v2/jobs", { target_url: target.url });
  await page.locator("tbody .row td:nth-child(5)", { hasText: "1" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.getByRole("button", { name: "Open 127.0.0.1" }).click();
  await page.getByRole("button", { name: "Open it" }).click();
  await untilTold(page, "The host is opened");
  await page.goto(`${site.origin}/console/production/jobs/${id}`);
  await page.getByText("Attempt 1 succeeded").waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("a dialog that is opened while another host is still being parked waits for that, and then parks its own", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/hosts");
  const held = Promise.withResolvers<Route>();
  await page.route("**/park", (route) => held.resolve(route), { times: 1 });
  const ask = async (host: string) => {
    await page.getByLabel("Host name").fill(host);
    await page.getByRole("button", { name: "Park the host" }).click();
  };
  const parks = page.getByRole("button", { name: "Park it" });
  await ask("first.example.com");
  await parks.click();
  const route = await held.promise;
  await page.getByRole("button", { name: "Back" }).click();
  await ask("second.example.com");
  expect(await parks.isEnabled()).toBe(false);
  await route.continue();
  await untilTold(page, "The host is parked.");
  await parks.click();
  const rowOf = (host: string) => page.locator("tbody .row", { hasText: host });
  await rowOf("second.example.com").waitFor();
  await rowOf("first.example.com").waitFor();
  expect(complaints).toEqual([]);
  await close();
});
