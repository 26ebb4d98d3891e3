import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Page } from "playwright-core";
import { stopOwnServer } from "../support/postgres.ts";
import { startTarget } from "../support/target.ts";
import { buildShowcase } from "./showcase.ts";
import { startConsole, untilLoaded } from "./support.ts";

/**
 * `npm run screenshots` writes pictures of each page of the console, light and dark, wide and narrow, to
 * `.cache/screenshots`. With `-- --readme` it also writes the pictures of the README to `docs`.
 */

const ROOT = dirname(dirname(import.meta.dir));
const FOLDER = join(ROOT, ".cache", "screenshots");
const WIDTHS = { wide: { width: 1280, height: 860 }, narrow: { width: 375, height: 780 } };
const COLOURS = ["light", "dark"] as const;
/** The pictures of the README, each with the colours in which the README shows it. */
const IN_README = [
  ["overview", "light"],
  ["job", "light"],
  ["schedule", "light"],
  ["jobs", "dark"],
] as const;
/** The time after which charts and lists are drawn. */
const STILL_MS = 700;
const WEBP_QUALITY = 82;

const target = startTarget(({ path }) =>
  path === "/mail"
    ? new Response('{"error": "mailbox over quota, try later"}', { status: 503 })
    : new Response("ok"),
);
const site = await startConsole();
const { pages } = await buildShowcase(site, target.port);
mkdirSync(FOLDER, { recursive: true });
for (const [width, size] of Object.entries(WIDTHS)) {
  for (const colours of COLOURS) {
    const { page, close } = await site.openPage(pages.overview ?? "", { ...size, colours });
    for (const [name, address] of Object.entries(pages)) {
      await page.goto(`${site.origin}${address}`);
      await untilLoaded(page);
      await page.waitForTimeout(STILL_MS);
      const path = join(FOLDER, `${name}-${width}-${colours}.png`);
      await page.screenshot({ path, fullPage: true });
      console.log(path);
      const isShown = width === "wide" && IN_README.some(([one, its]) => one === name && its === colours);
      if (isShown && process.argv.includes("--readme"))
        await writeWebp(page, join(ROOT, "docs", `console-${name}.webp`));
    }
    await close();
  }
}
await site.stop();
await target.stop();
await stopOwnServer();

/** Writes the visible part of the page as WebP, which takes a third of the PNG's bytes. */
async function writeWebp(page: Page, path: string): Promise<void> {
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: WEBP_QUALITY });
  writeFileSync(path, Buffer.from(data, "base64"));
}
