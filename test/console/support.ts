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
/** A slow machine is no outage of Postgres, except in the tests that have one. The console sends nothing again by itself. */
const STORE_TIME_MS = 30_000;
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
  if (options.executes !== false) await Promise.all([cell.startWorker(), cell.startDelivery()]);
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
    storeTimeMsMax: options.via === undefined ? STORE_TIME_MS : undefined,
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

/** Resolves once the page has everything that it shows. */
export async function untilLoaded(page: Page): Promise<void> {
  await page.getByRole("heading", { level: 1 }).waitFor();
  await page.waitForFunction(() => document.querySelector(".bones") === null);
}
