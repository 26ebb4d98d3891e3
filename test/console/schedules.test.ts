import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { findClockChanges } from "../../services/console/app/pages/schedules/clock-changes.ts";
import { startTarget, type Target } from "../support/target.ts";
import { findBarriers } from "./axe.ts";
import { pressChord, SETUP_TIMEOUT_MS, startConsole, TEST_TIMEOUT_MS, type TestConsole } from "./support.ts";

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

test("a clock change is known when the last Sunday of March before it was 53 weeks earlier", () => {
  const changes = findClockChanges("Europe/Berlin", Date.parse("2029-03-25T12:00:00Z"));
  expect(changes.map(({ at }) => new Date(at).toISOString())).toEqual([
    "2029-10-28T01:00:00.000Z",
    "2030-03-31T01:00:00.000Z",
  ]);
});

/** The next day on which Berlin sets its clocks forward: the last Sunday of March, at 01:00 UTC. Such as `2027-03-28`. */
function findChangeDay(now: number): string {
  const year = new Date(now).getUTCFullYear();
  const changes = [year, year + 1].map((ofYear) => {
    const lastOfMarch = new Date(Date.UTC(ofYear, 2, 31, 1));
    return lastOfMarch.setUTCDate(31 - lastOfMarch.getUTCDay());
  });
  return new Date(changes.find((at) => at > now) ?? Number.NaN).toISOString().slice(0, 10);
}

test("a schedule is created with its firings in view, edited, paused, resumed, run, and deleted", async () => {
  const { page, complaints, close } = await site.openPage("/console/production/schedules");
  await page.getByRole("heading", { name: "No schedules yet" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.keyboard.press("c");
  await page.getByLabel("Name").fill("nightly");
  await page.getByLabel("Cron").fill("30 2 * *");
  await page.locator(".fault").first().waitFor();
  // 02:30 does not exist in Berlin on that day.
  const changeDay = findChangeDay(Date.now());
  await page.getByLabel("Cron").fill(`30 2 ${changeDay.slice(8)} 3 *`);
  await page.getByLabel("Time zone").fill("Europe/Berlin");
  await page.getByText(`${changeDay} 03:30:00 +02:00`).waitFor();
  await page.getByText("moved by the clock change").first().waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.getByLabel("Cron").fill("30 2 * * *");
  await page.getByRole("button", { name: "Create the schedule" }).click();
  await page.locator(".fault").first().waitFor();
  expect(await page.getByLabel("Name").inputValue()).toBe("nightly");
  await page.getByLabel("Target URL").fill(target.url);
  await page.getByLabel("Payload").fill('{"price": 1.10}');
  await page.getByRole("button", { name: "Create the schedule" }).click();

  await page.getByRole("heading", { name: "nightly" }).waitFor();
  await page.locator(".calendar .fires").first().waitFor();
  await page.getByRole("button", { name: `Clocks +1 h on ${changeDay}` }).click();
  await page
    .locator(".calendar .changes", { hasText: changeDay.slice(5) })
    .getByText("clocks +1 h")
    .waitFor();
  expect(await page.locator(".calendar .changes").getByText("03:30").count()).toBe(1);
  expect(await findBarriers(page)).toEqual([]);

  await page.getByRole("button", { name: "Pause" }).click();
  await page.locator(".badge", { hasText: "paused" }).waitFor();
  await page.getByRole("heading", { name: "When it would fire next" }).waitFor();
  await page.getByRole("button", { name: "Resume" }).click();
  await page.locator(".badge", { hasText: "active" }).waitFor();

  await page.getByRole("link", { name: "Edit" }).click();
  await page.getByLabel("Cron").fill("0 4 * * *");
  await page.getByLabel("Tags").fill("night");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("04:00").first().waitFor();
  expect(await page.getByRole("region", { name: "the payload" }).textContent()).toContain("1.10");

  await page.getByRole("button", { name: "Run now" }).click();
  await page.getByText("Attempt 1 succeeded").waitFor();
  await page.getByRole("link", { name: "night", exact: true }).click();
  await page.getByText("This is the only one.").waitFor();
  await pressChord(page, "g", "s");
  await page.getByRole("link", { name: "nightly" }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("button", { name: "Delete the schedule" }).click();
  await page.getByRole("heading", { name: "No schedules yet" }).waitFor();
  expect(complaints).toEqual([]);
  await close();
});

test("a schedule's flow is created, kept while it is refused, changed and taken away", async () => {
  const flow = async () =>
    (await site.call<{ flow?: object }>("GET", "/v2/schedules/by-name/per-account")).flow;
  const { page, complaints, close } = await site.openPage("/console/production/schedules/new");
  await page.getByLabel("Name").fill("per-account");
  await page.getByLabel("Cron").fill("@daily");
  await page.getByLabel("Target URL").fill(target.url);
  await page.getByLabel("Flow key").fill("account 4711");
  await page.getByLabel("Its attempts at once").fill("2");
  await page.getByLabel("A place is kept").selectOption("job");
  await page.getByLabel("Its starts").fill("5");
  await page.getByLabel("in so many seconds").fill("60");
  await page.getByRole("button", { name: "Create the schedule" }).click();
  await page.locator(".fault").first().waitFor();
  expect(await page.getByLabel("Flow key").getAttribute("aria-invalid")).toBe("true");
  const shown = () =>
    Promise.all(
      ["Flow key", "Its attempts at once", "A place is kept", "Its starts", "in so many seconds"].map(
        (label) => page.getByLabel(label).inputValue(),
      ),
    );
  expect(await shown()).toEqual(["account 4711", "2", "job", "5", "60"]);
  expect(await findBarriers(page)).toEqual([]);
  await page.getByLabel("Flow key").fill("account:4711");
  await page.getByRole("button", { name: "Create the schedule" }).click();
  await page.getByRole("link", { name: "account:4711" }).waitFor();
  const given = { key: "account:4711", concurrency: 2, rate: { count: 5, per_seconds: 60 }, hold: "job" };
  expect(await flow()).toEqual(given);

  const edit = async (fields: Record<string, string>) => {
    await page.getByRole("link", { name: "Edit" }).click();
    for (const [label, text] of Object.entries(fields)) await page.getByLabel(label).fill(text);
    await page.getByRole("button", { name: "Save" }).click();
  };
  await edit({ "Its attempts at once": "0" });
  await page.locator(".fault").first().waitFor();
  expect(await shown()).toEqual(["account:4711", "0", "job", "5", "60"]);
  await page.getByLabel("Its attempts at once").fill("3");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("link", { name: "Edit" }).waitFor();
  expect(await flow()).toEqual({ ...given, concurrency: 3 });
  await edit({ Tags: "daily" });
  await page.getByRole("link", { name: "daily", exact: true }).waitFor();
  expect(await flow()).toEqual({ ...given, concurrency: 3 });
  await edit({ "Flow key": "" });
  await page.getByRole("link", { name: "Edit" }).waitFor();
  expect(await flow()).toBeUndefined();
  expect(complaints).toEqual([]);
  await close();
});

test("the ledger says what became of each instant, and what did not fire is backfilled", async () => {
  const { id } = await site.call<{ id: string }>("POST", "/v2/schedules", {
    name: "<b>every</b> 30 s",
    cron: "*/30 * * * * *",
    target_url: target.url,
  });
  await site.call("PATCH", `/v2/schedules/${id}`, { paused: true });
  const before = new Date(Date.now() - 300_000);
  // The schedule looks as if it had been paused for an hour.
  await site.cell.db.run("age_timetables", "UPDATE timetables SET since = since - interval '1 hour'", []);
  const { page, complaints, close } = await site.openPage(`/console/production/schedules/${id}`);
  await page.getByRole("heading", { name: "<b>every</b> 30 s" }).waitFor();
  await page.getByRole("table", { name: "Ledger" }).getByText("skipped paused").first().waitFor();
  await page.getByRole("button", { name: "Backfill" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("From").fill(before.toISOString().slice(0, 19));
  expect(await findBarriers(page)).toEqual([]);
  await dialog.getByRole("button", { name: "Backfill" }).click();
  await page.waitForURL(/\/bulk\/blk_/);
  await page.goto(`${site.origin}/console/production/schedules/${id}`);
  await page.getByRole("table", { name: "Ledger" }).getByText("backfilled").first().waitFor();
  expect(complaints).toEqual([]);
  await close();
});
