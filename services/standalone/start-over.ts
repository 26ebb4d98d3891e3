import { createInterface } from "node:readline";
import { isatty } from "node:tty";
import type { Config } from "../../shared/platform/config.ts";
import { DataDirInUse, ForeignData } from "../../shared/platform/embedded-postgres/home.ts";
import { claimData } from "../../shared/platform/embedded-postgres/removal.ts";

/**
 * `--fresh`: removes the standalone's own data once a person has agreed, or if `--yes` is given. If the person does not agree,
 * or the data must not be removed, a sentence says so and the process ends with 1. It is called before signals are handled, so
 * that Ctrl-C ends the question.
 */
export async function startOverOrExit(
  { databaseUrl, dataDir }: Pick<Config, "databaseUrl" | "dataDir">,
  { yes }: { yes: boolean },
): Promise<void> {
  if (databaseUrl !== null) {
    fail("--fresh removes the data of the standalone's own Postgres, and DATABASE_URL names another one.");
  }
  const claimed = claimOrExit(dataDir);
  if (claimed === null) return;
  if (!yes) {
    if (!isatty(0) || !isatty(1))
      fail("--fresh asks before it removes anything: without a terminal add --yes.");
    process.stdout.write(
      `This removes ${claimed.folder}: all projects with their keys, jobs, schedules and runs.\nType yes to go on: `,
    );
    if ((await readLine()) !== "yes") fail("Nothing was removed.");
  }
  await claimed.remove();
  process.stdout.write(`Removed ${claimed.folder}.\n`);
}

function claimOrExit(dataDir: string) {
  try {
    return claimData(dataDir);
  } catch (error) {
    if (error instanceof DataDirInUse || error instanceof ForeignData)
      fail(`${error.message} Nothing was removed.`);
    throw error;
  }
}

/** The next line that is typed, without blanks around it; empty at the end of the input. */
function readLine(): Promise<string> {
  return new Promise((resolve) => {
    const lines = createInterface({ input: process.stdin, terminal: false });
    lines.once("close", () => resolve(""));
    lines.once("line", (line) => {
      resolve(line.trim());
      lines.close();
    });
  });
}

function fail(sentence: string): never {
  process.stderr.write(`${sentence}\n`);
  process.exit(1);
}
