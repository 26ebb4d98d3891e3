import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { startTarget, type Target } from "../support/target.ts";
import { findBarriers } from "./axe.ts";
import { loseAnswer, SETUP_TIMEOUT_MS, startConsole, TEST_TIMEOUT_MS, type TestConsole } from "./support.ts";

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

test("jobs are counted by a filter, canceled at a pace, and the rest is left by an abort", async () => {
  const jobs = Array.from({ length: 100 }, () => {
    return { target_url: target.url, run_at: "2030-01-01T00:00:00Z", tags: ["many"] };
  });
  // At one a second the operation takes more than three minutes, so a slow browser is in time to abort it.
  await site.call("POST", "/v2/jobs/batch", { jobs });
  const made = await site.call<{ data: { id: string }[] }>("POST", "/v2/jobs/batch", { jobs });
  const { page, complaints, close } = await site.openPage("/console/production/bulk");
  await page.getByRole("heading", { name: "No bulk operations yet" }).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.keyboard.press("c");
  await page.getByLabel("Action", { exact: true }).selectOption("cancel");
  await page.getByRole("button", { name: "Count first" }).click();
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Tag").fill("many");
  await page.getByLabel("Members a second, at most").fill("1");
  await page.getByRole("button", { name: "Count first" }).click();
  await page.getByText("200 would be taken.").waitFor();
  await site.call("DELETE", `/v2/jobs/${made.data[0]?.id}`);
  await page.getByRole("button", { name: "Count first" }).click();
  await page.getByText("199 would be taken.").waitFor();
  expect(await page.locator("a", { hasText: /^job_/ }).count()).toBe(5);
  expect(await findBarriers(page)).toEqual([]);

  await page.getByRole("button", { name: "Start" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Start" }).click();
  await page.getByRole("heading", { name: "Bulk cancel" }).waitFor();
  await page.getByText(/[1-9][\d.]* % of them had their turn/).waitFor();
  expect(await findBarriers(page)).toEqual([]);
  await page.getByRole("button", { name: "Abort" }).click();
  const abort = () => page.getByRole("button", { name: "Abort it" }).click();
  await loseAnswer(page, "**/abort", abort);
  // The operation may be over by now; the second press succeeds because it repeats the same abort.
  await abort();
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.locator(".badge", { hasText: "aborted" }).waitFor();

  await page.getByRole("link", { name: "← Bulk operations" }).click();
  await page.getByText("All 3 are shown.").waitFor();
  await page.getByText("cancel, dry run").first().waitFor();
  const { data } = await site.call<{ data: unknown[] }>("GET", "/v2/jobs?tag=many&status=queued&limit=200");
  expect(data.length).toBeGreaterThan(0);
  expect(data.length).toBeLessThan(199);
  expect(complaints).toEqual([]);
  await close();
});
