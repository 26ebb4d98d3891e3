import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { startTestGateway, type TestGateway } from "../../support/gateway.ts";
import { type Json, readPublished } from "./published.ts";

const CLI = fileURLToPath(import.meta.resolve("@redocly/cli/bin/cli.js"));
const RULES = join(import.meta.dir, "redocly.yaml");
const LINT_TIMEOUT_MS = 280_000;
setDefaultTimeout(300_000);

let gateway: TestGateway;
let text: string;
/** An empty folder for the linter, which would obey an ignore file in the folder where it runs. */
let folder: string;

beforeAll(async () => {
  gateway = await startTestGateway();
  ({ text } = await readPublished(gateway));
  folder = mkdtempSync(join(tmpdir(), "jobwheel-lint-"));
});
afterAll(async () => {
  rmSync(folder, { recursive: true });
  await gateway.stop();
});

/** The complaints of a public linter about the document as it was served. */
function lint(document: string): string[] {
  const file = join(folder, "openapi.json");
  writeFileSync(file, document);
  const run = spawnSync(process.execPath, [CLI, "lint", file, `--config=${RULES}`, "--format=json"], {
    cwd: folder,
    // These settings keep the linter from sending telemetry and from looking for updates.
    env: { ...process.env, REDOCLY_TELEMETRY: "off", REDOCLY_SUPPRESS_UPDATE_NOTICE: "true" },
    encoding: "utf8",
    timeout: LINT_TIMEOUT_MS,
  });
  const { totals, problems } = JSON.parse(run.stdout);
  const complaints = problems.map(
    (problem: Json) => `${problem.severity} ${problem.ruleId} ${problem.message}`,
  );
  expect(complaints).toHaveLength(totals.errors + totals.warnings + totals.ignored);
  expect(run.status === 0).toBe(complaints.length === 0);
  return complaints;
}

/**
 * A path by name also fits a schedule whose id is `by-name`. No such id exists, and the router takes each of these paths
 * as the one by name (edge/routing.test.ts).
 */
const AMBIGUOUS = ["firings", "run"].map(
  (rest) =>
    "error no-ambiguous-paths Paths should resolve unambiguously. Found two ambiguous paths: " +
    `\`/v2/schedules/by-name/{name}\` and \`/v2/schedules/{schedule_id}/${rest}\`.`,
);

describe("the published document", () => {
  test("passes a strict public linter, but for paths that it cannot tell apart", () => {
    expect(lint(text).sort()).toEqual(AMBIGUOUS);
  });

  test("would fail that linter for whatever is missing, left over or untrue", () => {
    const document = JSON.parse(text);
    delete document.info.license;
    delete document.paths["/v2/jobs"].get.summary;
    delete document.components.schemas.Region;
    document.components.schemas.Spare = { type: "string" };
    document.components.schemas.Run.required.push("owner");
    const complaints = lint(JSON.stringify(document)).join("\n");
    for (const rule of [
      "info-license",
      "operation-summary",
      "no-unresolved-refs",
      "no-unused-components",
      "no-invalid-media-type-examples",
    ]) {
      expect(complaints).toContain(rule);
    }
  });
});
