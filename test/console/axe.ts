import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Page } from "playwright-core";

/** Answers the serious and critical faults that axe finds in the page: the rule and the place of each. */
export async function findBarriers(page: Page): Promise<string[]> {
  // The browser's tools evaluate the script, so the page's policy does not bind it.
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: { run(): Promise<AxeResults> } };
    const { violations } = await axe.run();
    return violations
      .filter(({ impact }) => impact === "serious" || impact === "critical")
      .flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 200)}`));
  });
}

interface AxeResults {
  violations: { id: string; impact: string; nodes: { html: string }[] }[];
}

const AXE = readFileSync(fileURLToPath(import.meta.resolve("axe-core/axe.min.js")), "utf8");
