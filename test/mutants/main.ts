import { spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { startEmbeddedPostgres } from "../../shared/platform/embedded-postgres/embedded-postgres.ts";
import { findNatsServer } from "../support/nats-binary.ts";
import { MUTANTS, type Mutant } from "./mutants.ts";

/**
 * `npm run test:mutants` checks the tests: each fault of mutants.ts is put into a copy of the checkout, and the test
 * file that it names must fail there. Before that, these files must pass without a fault. `-- WORD...` takes only the
 * faults whose name or file contains one of the words. Exits with 0 only if every fault was caught.
 */

const TEST_TIMEOUT_MS = 120_000;
const root = dirname(dirname(import.meta.dir));
const words = process.argv.slice(2);

interface Outcome {
  /** The names of the tests that failed. */
  failed: string[];
  /** Why the test file gave no result, such as an error while it was loaded; null if it ran. */
  broken: string | null;
}

async function main(): Promise<number> {
  const wanted = MUTANTS.filter(
    ({ name, file }) => words.length === 0 || words.some((word) => `${name} ${file}`.includes(word)),
  );
  if (wanted.length === 0) throw new Error(`there is no mutant for: ${words.join(" ")}`);
  const scratch = mkdtempSync(join(tmpdir(), "jobwheel-mutants-"));
  const postgres = await startEmbeddedPostgres({ dataDir: join(scratch, "postgres") });
  try {
    const copy = join(scratch, "checkout");
    copyCheckout(copy);
    const environment = {
      ...process.env,
      TEST_DATABASE_URL: process.env.TEST_DATABASE_URL ?? postgres.url,
      NATS_SERVER_BIN: await findNatsServer(),
    };
    const run = (file: string) => runTests(copy, file, join(scratch, "report.xml"), environment);
    const files = [...new Set(wanted.map(({ caughtBy }) => caughtBy))];
    for (const file of files) expectSound(file, await run(file));
    console.log(`without a fault ${files.length} test files pass`);
    let missedCount = 0;
    for (const mutant of wanted) {
      const { failed, broken } = await withFault(copy, mutant, () => run(mutant.caughtBy));
      const isCaught = failed.length > 0 && broken === null;
      if (!isCaught) missedCount++;
      console.log(`${isCaught ? "caught" : "MISSED"}  ${mutant.name}  (${mutant.file})`);
      for (const test of failed.slice(0, 2)) console.log(`        by ${mutant.caughtBy}: ${test}`);
      if (broken !== null) console.log(`        ${mutant.caughtBy} did not run: ${broken}`);
    }
    console.log(`${wanted.length - missedCount} of ${wanted.length} faults were caught`);
    return missedCount === 0 ? 0 : 1;
  } finally {
    await postgres.stop();
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** Copies the files that git tracks or would add, as they are now. Packages and downloads are shared. */
function copyCheckout(copy: string): void {
  const listed = Bun.spawnSync(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], {
    cwd: root,
  });
  for (const file of listed.stdout.toString().split("\0").filter(Boolean)) {
    mkdirSync(dirname(join(copy, file)), { recursive: true });
    cpSync(join(root, file), join(copy, file));
  }
  for (const folder of ["node_modules", ".cache"]) symlinkSync(join(root, folder), join(copy, folder));
}

async function withFault<Result>(copy: string, mutant: Mutant, act: () => Promise<Result>): Promise<Result> {
  const path = join(copy, mutant.file);
  const text = readFileSync(path, "utf8");
  const count = text.split(mutant.from).length - 1;
  if (count !== 1) throw new Error(`${mutant.file} has the text of "${mutant.name}" ${count} times`);
  writeFileSync(
    path,
    text.replace(mutant.from, () => mutant.to),
  );
  try {
    return await act();
  } finally {
    writeFileSync(path, text);
  }
}

function expectSound(file: string, { failed, broken }: Outcome): void {
  if (broken !== null) throw new Error(`${file} did not run: ${broken}`);
  if (failed.length > 0) throw new Error(`${file} fails without a fault: ${failed.join(", ")}`);
}

async function runTests(cwd: string, file: string, report: string, env: NodeJS.ProcessEnv): Promise<Outcome> {
  rmSync(report, { force: true });
  const { promise, resolve } = Promise.withResolvers<number | null>();
  const reporter = ["--reporter=junit", `--reporter-outfile=${report}`];
  const child = spawn(process.execPath, ["test", `--timeout=${TEST_TIMEOUT_MS}`, ...reporter, `./${file}`], {
    cwd,
    env,
    stdio: "ignore",
  });
  child.on("exit", resolve);
  const code = await promise;
  let xml: string;
  try {
    xml = readFileSync(report, "utf8");
  } catch {
    return { failed: [], broken: `bun ended with ${code} and no report` };
  }
  const cases = [...xml.matchAll(/<testcase name="([^"]*)"[^>]*?(?:\/>|>([\s\S]*?)<\/testcase>)/g)];
  if (cases.length === 0) return { failed: [], broken: "it has no test" };
  const failed = cases
    .filter(([, , inside = ""]) => inside.includes("<failure"))
    .map(([, name = ""]) => name.replaceAll("&apos;", "'"));
  return { failed, broken: code !== 0 && failed.length === 0 ? `bun ended with ${code}` : null };
}

process.exitCode = await main();
