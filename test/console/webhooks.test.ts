import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
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
let receiver: { fetch(request: Request): Promise<Response> } | null = null;
let isBroken = false;

beforeAll(async () => {
  target = startTarget(async ({ path, headers, body }) => {
    if (path !== "/events") return new Response("ok");
    if (isBroken) return new Response("<b>broken</b>", { status: 500 });
    return receiver?.fetch(new Request(target.url, { method: "POST", headers, body })) ?? new Response("ok");
  });
  site = await startConsole();
}, SETUP_TIMEOUT_MS);
afterAll(async () => {
  await site?.stop();
  await target?.stop();
});

/** Runs the recipe with the secret, as it stands on the page. */
async function cook(recipe: string, secret: string): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "recipe-"));
  process.env.JOBWHEEL_SECRET = secret;
  try {
    const client = join(import.meta.dir, "../../shared/client/receive/index.ts");
    const file = join(folder, "receiver.ts");
    writeFileSync(
      file,
      recipe.replace("@jobwheel/client/receive", client).replace("console.log(event.id, event.type);", ""),
    );
    receiver = { fetch: (await import(file)).receiver };
  } finally {
    delete process.env.JOBWHEEL_SECRET;
    rmSync(folder, { recursive: true });
  }
}

test("an endpoint is added, tested, verified by the recipe, resent to, rotated, disabled and deleted", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/webhooks");
  await page.getByRole("heading", { name: "No endpoints yet" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.keyboard.press("c");
  await page.getByLabel("URL").fill("nowhere");
  await page.getByLabel("Description").fill("Billing");
  await page.getByLabel("job.canceled").check();
  await page.getByRole("button", { name: "Add the endpoint" }).click();
  await page.locator(".fault").waitFor();
  expect(await page.getByLabel("Description").inputValue()).toBe("Billing");
  await page.getByLabel("URL").fill(target.url.replace("/hook", "/events"));
  await page.getByRole("button", { name: "Add the endpoint" }).click();
  const secret = (await page.locator(".secret code").textContent()) ?? "";
  expect(secret).toStartWith("whsec_");
  expect(await findBarriers(page)).toEqual([]);
  await cook((await page.getByRole("region", { name: "the recipe to verify" }).textContent()) ?? "", secret);

  await page.getByRole("link", { name: "To the endpoint" }).click();
  await page.getByRole("heading", { name: "Billing" }).waitFor();
  expect(await page.content()).not.toContain(secret);
  await page.getByRole("heading", { name: "Nothing was sent yet" }).waitFor();
  await page.getByRole("button", { name: "Send a test" }).click();
  await page.locator("article .badge", { hasText: "succeeded" }).waitFor();
  await page.getByRole("button", { name: "1 attempt", exact: true }).click();
  await page.getByText("Attempt 1").waitFor();
  expect(await findBarriers(page)).toEqual([]);

  isBroken = true;
  await page.getByRole("button", { name: "Resend" }).click();
  await page.locator("article .attempt-head", { hasText: "Attempt 2" }).getByText("failed").waitFor();
  expect(await page.getByRole("region", { name: "the error of attempt 2" }).textContent()).toContain(
    "<b>broken</b>",
  );
  isBroken = false;

  await page.getByRole("button", { name: "Rotate the secret" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Rotate the secret" }).click();
  await page.locator(".secret code").waitFor();
  expect(await page.locator(".secret code").textContent()).not.toBe(secret);
  await page.getByRole("link", { name: "Edit" }).click();
  await page.getByLabel("Description").fill("Accounting");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("heading", { name: "Accounting" }).waitFor();
  await page.getByRole("button", { name: "Disable" }).click();
  await page.getByRole("button", { name: "Disable it" }).click();
  await page.locator(".title-line .badge", { hasText: "disabled" }).waitFor();
  await page.getByRole("button", { name: "Enable" }).click();
  await page.locator(".title-line .badge", { hasText: "enabled" }).waitFor();

  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("button", { name: "Delete the endpoint" }).click();
  await page.getByRole("heading", { name: "No endpoints yet" }).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("a sample is sent once and resent once, although the answers were lost", async () => {
  const { id } = await site.call<{ id: string }>("POST", "/v2/webhooks", {
    url: target.url,
    events: ["job.failed"],
  });
  const deliveries = async () => {
    type Attempted = { attempts: unknown[]; next_attempt_at: string | null };
    return (await site.call<{ data: Attempted[] }>("GET", `/v2/webhooks/${id}/deliveries`)).data;
  };
  const { page, complaints, close } = await site.openPage(`/console/production/webhooks/${id}`);
  const sample = () => page.getByRole("button", { name: "Send a test" }).click();
  await loseAnswer(page, "**/test", sample);
  await sample();
  await untilTold(page, "A signed sample is on its way.");
  expect(await deliveries()).toHaveLength(1);
  await page.locator("article .badge", { hasText: "succeeded" }).waitFor();

  const resend = () => page.getByRole("button", { name: "Resend" }).click();
  await loseAnswer(page, "**/deliveries/*/retry", resend);
  const isResent = async () => (await deliveries())[0]?.attempts.length === 2;
  while (!(await isResent())) await Bun.sleep(100);
  await resend();
  await untilTold(page, "It is being sent again.");
  expect(await deliveries()).toMatchObject([{ attempts: [{}, {}], next_attempt_at: null }]);
  // Once the page has an answer, the next press sends another sample.
  await sample();
  await page.locator("article").nth(1).waitFor();
  expect(await deliveries()).toHaveLength(2);
  expect(complaints).toEqual([]);
  await close();
});

test("a dialog stays open when something that was begun before it is done", async () => {
  const { id } = await site.call<{ id: string }>("POST", "/v2/webhooks", {
    url: target.url,
    events: ["job.failed"],
  });
  const { page, complaints, close } = await site.openPage(`/console/production/webhooks/${id}`);
  const held = Promise.withResolvers<Route>();
  await page.route("**/test", (route) => held.resolve(route), { times: 1 });
  await page.getByRole("button", { name: "Send a test" }).click();
  const route = await held.promise;
  await page.getByRole("button", { name: "Delete" }).click();
  const dialog = page.getByRole("dialog", { name: "Delete this endpoint?" });
  await dialog.waitFor();
  await route.continue();
  await untilTold(page, "A signed sample is on its way.");
  expect(await dialog.isVisible()).toBe(true);
  await dialog.getByRole("button", { name: "Back" }).click();
  await dialog.waitFor({ state: "detached" });
  expect(complaints).toEqual([]);
  await close();
});
