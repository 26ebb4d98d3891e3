import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { copyFolder } from "../../support/copy-folder.ts";
import { CHECKOUT } from "../../support/service-process.ts";

/** A package as users have it: packed by npm in a copy of this checkout, and installed by npm in a folder of its own. */
export interface InstalledPackage {
  /** The folder in which a user's program would stand. */
  folder: string;
  /** The files of the tarball. */
  files: string[];
  /** Type checks these files of the folder, and compiles them, as a user's own tsc does on Node. Answers its complaints. */
  compile(files: readonly string[], options: Record<string, unknown>): Promise<string>;
  /** Runs a program of the folder to its end. */
  run(command: readonly string[], environment: Record<string, string>): Promise<Ended>;
  remove(): void;
}

export interface Ended {
  code: number;
  said: string;
  complaint: string;
}

const COPIED = ["shared", "services", "scripts", "package.json", "bun.lock", "LICENSE"];
const LINKED = ["node_modules", ".cache"];

/** `place` is the folder in which `npm pack` is called, and `beside` names the packages that users install as well. */
export async function installPackage(
  place: "shared/client" | "services/cli",
  beside: readonly string[] = [],
): Promise<InstalledPackage> {
  const room = mkdtempSync(join(tmpdir(), "jobwheel-package-"));
  const [checkout, folder] = [join(room, "checkout"), join(room, "app")];
  for (const path of [checkout, folder]) mkdirSync(path);
  for (const name of COPIED) await copyFolder(join(CHECKOUT, name), join(checkout, name));
  for (const name of LINKED) symlinkSync(join(CHECKOUT, name), join(checkout, name));

  const packing = ["npm", "pack", "--json", "--pack-destination", room];
  const [packed] = JSON.parse(await runWell(packing, join(checkout, place))) as Packed[];
  if (packed === undefined) throw new Error("npm has packed nothing");
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "app", type: "module", private: true }));
  const tarball = join(room, packed.filename);
  await runWell(["npm", "install", "--offline", "--no-audit", "--no-fund", tarball], folder);
  linkPackages(folder, beside);

  return {
    folder,
    files: packed.files.map(({ path }) => path),
    async compile(files, compilerOptions) {
      writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions, files }));
      const tsc = join(CHECKOUT, "node_modules/typescript/bin/tsc");
      const { code, said, complaint } = await run(["node", tsc, "-p", folder], folder);
      return code === 0 ? said : `tsc has ended with ${code}: ${said}${complaint}`;
    },
    run: (command, environment) => run(command, folder, environment),
    remove: () => rmSync(room, { recursive: true, force: true }),
  };
}

interface Packed {
  filename: string;
  files: { path: string }[];
}

/** Links the packages that users install beside the client from this checkout, so that nothing is downloaded. */
function linkPackages(folder: string, names: readonly string[]): void {
  for (const name of names) {
    const place = join(folder, "node_modules", name);
    mkdirSync(dirname(place), { recursive: true });
    symlinkSync(join(CHECKOUT, "node_modules", name), place);
  }
}

async function run(
  command: readonly string[],
  cwd: string,
  env: NodeJS.ProcessEnv = process.env,
): Promise<Ended> {
  const child = Bun.spawn([...command], { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
  const [said, complaint, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { code, said, complaint };
}

/** Runs a program. Answers its stdout, and throws if the program fails. */
async function runWell(command: readonly string[], cwd: string): Promise<string> {
  const { code, said, complaint } = await run(command, cwd);
  if (code === 0) return said;
  throw new Error(`${command.join(" ")} ended with ${code}:\n${said}${complaint}`);
}
