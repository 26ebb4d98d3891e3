import { afterAll, beforeAll, expect, test } from "bun:test";
import { type Browser, chromium } from "playwright-core";
import { findChromium } from "../../support/chromium-binary.ts";
import { startTestGateway, type TestGateway } from "../../support/gateway.ts";

/** The setup may have to download the browser first. */
const SETUP_TIMEOUT_MS = 600_000;
const LAUNCH_TIMEOUT_MS = 240_000;
const TEST_TIMEOUT_MS = 240_000;
/** Flags that keep the browser from making requests of its own. */
const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

let gateway: TestGateway;
let browser: Browser;

beforeAll(async () => {
  const { path, env } = findChromium();
  gateway = await startTestGateway();
  // Each launch has its own profile folder, which is removed at its end.
  browser = await chromium.launch({
    executablePath: path,
    args: FLAGS,
    env: { ...process.env, ...env },
    timeout: LAUNCH_TIMEOUT_MS,
  });
}, SETUP_TIMEOUT_MS);
afterAll(async () => {
  await browser?.close();
  await gateway?.stop();
});

test(
  "the API page in a browser shows every operation, tries one, and asks nobody but its own gateway",
  async () => {
    const origin = `http://127.0.0.1:${gateway.port}`;
    const project = await gateway.addProject();
    const page = await browser.newPage();
    page.setDefaultTimeout(TEST_TIMEOUT_MS / 2);
    const asked: string[] = [];
    const complaints: string[] = [];
    page.on("request", (request) => asked.push(request.url()));
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) complaints.push(message.text());
    });

    await page.goto(`${origin}/docs`);
    await page.getByText("Create a job").waitFor();
    const shown = await page.locator(".opblock-summary-description").allTextContents();
    const { paths, webhooks } = JSON.parse((await gateway.call("GET", "/openapi.json")).text);
    const described = [...Object.values<object>(paths), ...Object.values<object>(webhooks)]
      .flatMap((methods) => Object.values(methods))
      .map(({ summary }) => summary);
    expect(shown.sort()).toEqual(described.sort());

    await page.getByRole("button", { name: "Authorize", exact: true }).click();
    await page.getByLabel("auth-bearer-value").fill(project.production);
    await page.getByRole("button", { name: "Apply credentials" }).click();
    await page.getByRole("button", { name: "Close" }).click();
    await page.getByText("Get the project").click();
    await page.getByRole("button", { name: "Try it out" }).click();
    const answered = page.waitForResponse(`${origin}/v2/project`);
    await page.getByRole("button", { name: "Execute" }).click();
    expect((await answered).status()).toBe(200);
    await page.locator(".live-responses-table").getByText(project.id).first().waitFor();

    expect(complaints).toEqual([]);
    expect(asked).toContain(`${origin}/openapi.json`);
    expect(asked.filter((url) => !url.startsWith(`${origin}/`) && !url.startsWith("data:"))).toEqual([]);
    await page.close();
  },
  TEST_TIMEOUT_MS,
);
