import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { CHECKOUT } from "../support/service-process.ts";

/** The files that the processes of a version need. */
const PARTS = ["services", "shared", "package.json", "bun.lock"];

/**
 * Brings a commit of this repository into the cache, unless it is there. Answers its folder. Throws if the history of this
 * clone does not reach so far back, as that of a shallow clone. The processes of the folder run on the Bun of this version,
 * and with its packages if both versions name the same ones.
 */
export function checkOutVersion(commit: string): string {
  const folder = join(CHECKOUT, ".cache", `version-${commit}`);
  if (existsSync(folder)) return folder;
  const missing = run("git", ["cat-file", "-e", `${commit}^{commit}`]);
  if (missing !== null)
    throw new Error(
      `The version before cannot be had from this clone, and nothing was tested (git: ${missing.trim()}). ` +
        "A shallow clone lacks it: `git fetch --unshallow`, then run this again.",
    );
  const partial = `${folder}.partial-${process.pid}`;
  rmSync(partial, { recursive: true, force: true });
  mkdirSync(partial, { recursive: true });
  const archive = join(partial, "version.tar");
  orThrow("git", ["archive", "--format=tar", `--output=${archive}`, commit, ...PARTS]);
  orThrow("tar", ["-xf", archive, "-C", partial]);
  rmSync(archive);
  // The folder lies within this checkout, so packages that it lacks are found in this checkout.
  if (dependenciesOf(partial) !== dependenciesOf(CHECKOUT))
    orThrow(process.execPath, [
      "install",
      `--cwd=${partial}`,
      "--frozen-lockfile",
      "--ignore-scripts",
      "--omit=dev",
      "--omit=optional",
    ]);
  renameSync(partial, folder);
  return folder;
}

const dependenciesOf = (folder: string) =>
  JSON.stringify(JSON.parse(readFileSync(join(folder, "package.json"), "utf8")).dependencies);

function orThrow(file: string, args: string[]): void {
  const fault = run(file, args);
  if (fault !== null) throw new Error(`${file} ${args[0]}: ${fault}`);
}

/** Answers null, or the program's error. */
function run(file: string, args: string[]): string | null {
  const { status, error, stderr } = spawnSync(file, args, { cwd: CHECKOUT, encoding: "utf8" });
  return status === 0 ? null : (error?.message ?? stderr);
}
