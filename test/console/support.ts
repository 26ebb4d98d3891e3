import { createHash, randomBytes } from "node:crypto";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { startGateway } from "../../services/gateway/start.ts";
import { createIdSource, KEY_PREFIX } from "../../shared/domain/ids.ts";
import { type KeyScope, makeKey } from "../../shared/domain/key.ts";
import type { Environment } from "../../shared/domain/scope.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { addKey } from "../../shared/store/resources/keys.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { findChromium } from "../support/chromium-binary.ts";

/** The console in a real browser, over a gateway, a worker and a delivery node on a real Postgres. */
export interface TestConsole {
  cell: Cell;
  origin: string;
  project: ProjectRow;
  /** Full keys of the project. */
  keys: Record<Environment, string>;
  browser: Browser;
  addKey(terms?: { environment?: Environment; scope?: KeyScope; expiresAt?: Date | null }): Promise<string>;
  /** A tab with a profile of its own, at the page without a key. */
  open(options?: TabOptions): Promise<Tab>;
  /** A tab that is signed in, at the page. */
  openPage(path: string, options?: TabOptions & { key?: string }): Promise<Tab>;
  /** Sends a request of the API. Expects a success. */
  call<Answer>(method: string, path: string, body?: object, key?: string): Promise<Answer>;
  stop(): Promise<void>;
}

export interface TabOptions {
  width?: number;
  height?: number;
  colours?: "light" | "dark";
  /** A browser profile to share, in place of one of its own. */
  context?: BrowserContext;
}

export interface Tab {
  page: Page;
  /** The browser's complaints: errors, warnings, violations of the policy, and requests to other hosts. */
  complaints: string[];
  close(): Promise<void>;
}

export const SETUP_TIMEOUT_MS = 600_000;
export const TEST_TIMEOUT_MS = 240_000;
const WAIT_MS = 60_000;
/** A slow machine is no outage of Postgres. An outage fails at once, and the console sends nothing again by itself. */
export const PATIENCE_MS = 30_000;
/** An attempt may be held for as long as a page may take to show something. */
const ATTEMPT_TIMEOUT_MS = 120_000;
/** The second key of a chord counts for this long after the first one. */
const CHORD_MS = 1_200;
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

/** `via` gives the gateway another way to the database. `executes` starts the worker and the delivery node. */
export async function startConsole(
  options: { via?: (cell: Cell) => Promise<Database>; executes?: boolean } = {},
): Promise<TestConsole> {
  const { path, env } = findChromium();
  const cell = await startCell();
  const { db, bus, clock, seal } = cell;
  if (options.executes !== false) {
    const attempts = { attemptTimeoutMs: ATTEMPT_TIMEOUT_MS };
    await Promise.all([cell.startWorker(attempts), cell.startDelivery(attempts)]);
  }
  const gateway = await startGateway({
    host: "127.0.0.1",
    port: 0,
    db: (await options.via?.(cell)) ?? db,
    bus,
    clock,
    log: createLog({ level: "error", name: "test" }),
    metrics: createMetrics(),
    shardsPerRegion: SHARDS_PER_REGION,
    targets: { allowInsecure: true, own: [] },
    publicUrl: null,
    seal,
    storeTimeMsMax: PATIENCE_MS,
  });
  const origin = `http://127.0.0.1:${gateway.port}`;
  const project = await cell.addProject();
  const ids = createIdSource(randomBytes);
  const browser = await chromium.launch({
    executablePath: path,
    args: FLAGS,
    env: { ...process.env, ...env },
    timeout: SETUP_TIMEOUT_MS,
  });

  const makeTestKey: TestConsole["addKey"] = async (terms = {}) => {
    const { environment = "production", scope = "full", expiresAt = null } = terms;
    const key = makeKey(environment, randomBytes);
    const hash = createHash("sha256").update(key).digest();
    const id = ids.next(KEY_PREFIX, Date.now());
    await addKey(db.drizzle, { id, projectNo: project.no, environment, scope, name: null, hash, expiresAt });
    return key;
  };
  const keys = {
    development: await makeTestKey({ environment: "development" }),
    production: await makeTestKey(),
  };

  const test: TestConsole = {
    cell,
    origin,
    project,
    keys,
    browser,
    addKey: makeTestKey,

    async open({ width = 1280, height = 900, colours = "light", context } = {}) {
      const own =
        context ??
        (await browser.newContext({ viewport: { width, height }, colorScheme: colours, locale: "en" }));
      const page = await own.newPage();
      page.setDefaultTimeout(WAIT_MS);
      const complaints: string[] = [];
      page.on("pageerror", (error) => complaints.push(error.message));
      page.on("console", (message) => {
        // A refusal of the API is an answer that the page shows. Violations of the policy come with their own text.
        const isRefusal = message.text().startsWith("Failed to load resource");
        if (["error", "warning"].includes(message.type()) && !isRefusal) complaints.push(message.text());
      });
      page.on("request", (request) => {
        const url = request.url();
        if (!url.startsWith(`${origin}/`)) complaints.push(`asked ${url}`);
        if (/svc_(?:dev|live)_/.test(url)) complaints.push("a key was in an address");
      });
      await page.addInitScript(keepToasts);
      await page.goto(`${origin}/`);
      return { page, complaints, close: () => (context === undefined ? own.close() : page.close()) };
    },

    async openPage(path, { key = keys.production, ...tab } = {}) {
      const opened = await test.open(tab);
      const { page } = opened;
      await page.getByLabel("API key").fill(key);
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByRole("heading", { level: 1 }).filter({ hasNotText: "Sign in" }).waitFor();
      await page.goto(`${origin}${path}`);
      await page.getByRole("heading", { level: 1 }).waitFor();
      return opened;
    },

    async call(method, path, body, key = keys.production) {
      const response = await fetch(`${origin}${path}`, {
        method,
        headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
        ...(body && { body: JSON.stringify(body) }),
      });
      const text = await response.text();
      if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
      return JSON.parse(text);
    },

    async stop() {
      await browser.close();
      await gateway.stop();
      await cell.stop();
    },
  };
  return test;
}

/**
 * Presses, and loses the answer to the request to `path` (a glob): the gateway carries the request out, and the page hears
 * nothing of the answer. Answers the lost answer.
 */
export async function loseAnswer<Answer>(
  page: Page,
  path: string,
  press: () => Promise<void>,
): Promise<Answer> {
  const lost = Promise.withResolvers<Answer>();
  await page.route(
    path,
    async (route) => {
      lost.resolve(await (await route.fetch()).json());
      await route.abort();
    },
    { times: 1 },
  );
  await press();
  await page.getByText("No answer came from the gateway.").waitFor();
  return lost.promise;
}

/** Resolves once the page has told this in its corner. */
export async function untilTold(page: Page, text: string): Promise<void> {
  await page.waitForFunction((part) => [...(window.told ?? [])].some((told) => told.includes(part)), text);
}

declare global {
  interface Window {
    /** The texts of the toasts so far: each is gone after some seconds, and the test may stand still for as long. */
    told?: Set<string>;
  }
}

/** Runs in the page. */
function keepToasts(): void {
  window.told = new Set();
  const observer = new MutationObserver(() => {
    for (const toast of document.querySelectorAll(".toast"))
      if (toast.checkVisibility()) window.told?.add(toast.textContent ?? "");
  });
  observer.observe(document, { childList: true, subtree: true });
}

/** Presses the two keys close after one another. */
export async function pressChord(page: Page, first: string, second: string): Promise<void> {
  let begunAt: number;
  do {
    begunAt = performance.now();
    await page.keyboard.press(first);
    await page.keyboard.press(second);
  } while (performance.now() - begunAt > CHORD_MS);
}

/** Resolves once the page has everything that it shows. */
export async function untilLoaded(page: Page): Promise<void> {
  await page.getByRole("heading", { level: 1 }).waitFor();
  await page.waitForFunction(() => document.querySelector(".bones") === null);
}
