import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { startTarget, type Target } from "../support/target.ts";
import { findBarriers } from "./axe.ts";
import {
  loseAnswer,
  pressChord,
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
  target = startTarget(({ path }) => new Response("", { status: path === "/broken" ? 500 : 200 }));
  site = await startConsole();
}, SETUP_TIMEOUT_MS);
afterAll(async () => {
  await site?.stop();
  await target?.stop();
});

test("the overview counts runs by outcome, says how late they were, what waits, and which hosts fail", async () => {
  const broken = target.url.replace("/hook", "/broken");
  const jobs = [
    ...Array.from({ length: 3 }, () => ({ target_url: target.url })),
    { target_url: broken, retry_policy: { max_attempts: 1 } },
    { target_url: target.url, run_at: "2030-01-01T00:00:00Z" },
  ];
  await site.call("POST", "/v2/jobs/batch", { jobs });
  const { page, complaints, close } = await site.openPage("/console/production/overview?period=1h");
  // Insights are some seconds behind; the page keeps itself up to date.
  await page.getByText("75 %").waitFor();
  const statOf = (name: string) => page.locator(".stat", { has: page.getByText(name, { exact: true }) });
  expect(await statOf("Runs").locator("dd").first().textContent()).toBe("4");
  expect(await statOf("Later").locator("dd").first().textContent()).toBe("1");
  expect(await statOf("Lateness, p99").textContent()).toMatch(/(?:within|above) the target of 1 s/);
  await page.getByRole("table", { name: "Hosts that fail" }).getByText("status 500").waitFor();
  await page.getByText("4 of 5,000,000").waitFor();
  await page.getByRole("figure", { name: "Runs by outcome" }).getByText("As a table").click();
  const cells = await page
    .getByRole("figure", { name: "Runs by outcome" })
    .locator("tbody td:nth-child(2)")
    .allTextContents();
  expect(cells.reduce((sum, text) => sum + Number(text), 0)).toBe(3);
  expect(await findBarriers(page)).toEqual([]);
  const notCounted = page.getByText("A run is counted within 15 s of its end.");
  expect(await notCounted.count()).toBe(0);
  await page.getByLabel("Region").selectOption("us-west");
  await page.getByText("No run has failed in this period.").waitFor();
  expect(await notCounted.count()).toBe(1);
  expect(new URL(page.url()).search).toBe("?period=1h&region=us-west");

  await pressChord(page, "g", "u");
  await page.getByRole("heading", { name: "Usage" }).waitFor();
  await page.getByText("4 (100 %)").waitFor();
  expect(await findBarriers(page)).toEqual([]);
  expect(complaints).toEqual([]);
  await close();
});

test("keys are made, rotated and revoked, the signing secret is rotated, and the project renamed", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/keys");
  await page.getByText("All 1 are shown.").or(page.getByText("This is the only one.")).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.keyboard.press("c");
  await page.getByLabel("Name", { exact: true }).fill("<i>reader</i>");
  await page.getByLabel("Expires in hours").fill("0");
  await page.getByRole("button", { name: "Make the key" }).click();
  await page.getByRole("dialog").locator(".fault").waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.getByLabel("Expires in hours").fill("1");
  await page.getByRole("button", { name: "Make the key" }).click();
  const made = (await page.locator(".secret code").textContent()) ?? "";
  const { name } = await site.call<{ name: string }>("GET", "/v2/project", undefined, made);
  expect(name).toBe("test");
  const { data } = await site.call<{ data: { id: string; name: string | null }[] }>("GET", "/v2/keys");
  const old = page.getByTitle(data.find((key) => key.name === "<i>reader</i>")?.id ?? "none");
  // The list is loaded anew after the secret is shown.
  await old.waitFor();
  expect(await old.count()).toBe(1);
  await page.getByRole("button", { name: "Rotate <i>reader</i>" }).click();
  await page.getByLabel("Hours until the key ends").fill("0");
  await page.getByRole("button", { name: "Rotate the key" }).click();
  await page.locator(".secret code").filter({ hasNotText: made }).waitFor();
  const successor = (await page.locator(".secret code").textContent()) ?? "";
  // It has the ended key until it is loaded anew.
  await old.waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Revoke <i>reader</i>" }).click();
  await page.getByRole("button", { name: "Revoke the key" }).click();
  await untilTold(page, "The key is revoked.");
  expect(successor).not.toBe(made);

  await page.getByRole("button", { name: "Rotate the signing secret" }).click();
  await page.getByRole("button", { name: "Rotate it" }).click();
  await page.locator(".secret code", { hasText: "whsec_" }).waitFor();
  await page.getByText("signs too, until").waitFor();
  await page.getByLabel("Project name").fill('<b>Name</b> "of" it');
  await page.getByRole("button", { name: "Save the project" }).click();
  await page.locator(".side .project-name", { hasText: '<b>Name</b> "of" it' }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  expect(complaints).toEqual([]);
  await close();
});

test("a rotation whose answer was lost is asked for again, and shows the secret that it has made", async () => {
  const { page, complaints, close } = await site.openPage("/console/development/keys", {
    key: site.keys.development,
  });
  await page.getByRole("button", { name: "Rotate the signing secret" }).click();
  const rotate = () => page.getByRole("button", { name: "Rotate it" }).click();
  const { secret } = await loseAnswer<{ secret: string }>(page, "**/signing-secret/rotate", rotate);
  await rotate();
  const shown = page.locator(".secret code");
  expect(await shown.textContent()).toBe(secret);
  // Another rotation makes another secret.
  await page.getByRole("button", { name: "Rotate the signing secret" }).click();
  await rotate();
  await shown.filter({ hasNotText: secret }).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("a key that only reads sees usage and secrets masked, and no keys", async () => {
  const key = await site.addKey({ scope: "read" });
  const { page, complaints, close } = await site.openPage("/console/production/keys", { key });
  await page.getByText("A key of scope read cannot list or make keys.").waitFor();
  await page.getByText(/whsec_\*{4}/).waitFor();
  expect(await page.getByRole("button", { name: /Rotate|Save|Make/ }).count()).toBe(0);
  expect(complaints).toEqual([]);
  await close();
});
