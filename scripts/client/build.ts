import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { Glob } from "bun";
import { writeContractTypes } from "./contract-types.ts";

/**
 * `npm pack` in shared/client calls this. It makes `dist/` of the client's sources: modules and declarations that import
 * nothing from outside of it. The client has types from the contract; they are written anew, from the schemas, into one
 * module of the package. `LICENSE` is copied beside it.
 */
const root = dirname(dirname(import.meta.dir));
const client = join(root, "shared/client");
const dist = join(client, "dist");
const CONTRACT = "contract.ts";
const COMPILER_OPTIONS = {
  module: "nodenext",
  target: "es2022",
  lib: ["es2022", "dom", "dom.iterable"],
  types: [],
  strict: true,
  exactOptionalPropertyTypes: true,
  noUncheckedIndexedAccess: true,
  verbatimModuleSyntax: true,
  declaration: true,
  noEmitOnError: true,
  outDir: dist,
};

mkdirSync(join(root, ".cache"), { recursive: true });
const stage = mkdtempSync(join(root, ".cache", "client-"));
try {
  rmSync(dist, { recursive: true, force: true });
  const files = [...new Glob("**/*.ts").scanSync({ cwd: client })].filter(
    (file) => !file.endsWith(".test.ts"),
  );
  for (const file of files) write(file, withOwnContract(file));
  write(CONTRACT, writeContractTypes());
  write("package.json", JSON.stringify({ type: "module" }));
  write("tsconfig.json", JSON.stringify({ compilerOptions: COMPILER_OPTIONS, include: ["**/*.ts"] }));
  const tsc = join(root, "node_modules/typescript/bin/tsc");
  const { status, stdout } = spawnSync(process.execPath, [tsc, "-p", stage], { encoding: "utf8" });
  if (status !== 0) throw new Error(`the client does not compile by itself:\n${stdout}`);
  copyFileSync(join(root, "LICENSE"), join(client, "LICENSE"));
} finally {
  rmSync(stage, { recursive: true, force: true });
}

function write(file: string, text: string): void {
  mkdirSync(dirname(join(stage, file)), { recursive: true });
  writeFileSync(join(stage, file), text);
}

/** The source as it stands in the package: its types come from the package's own module, not from the service's folders. */
function withOwnContract(file: string): string {
  const own = relative(dirname(file), CONTRACT);
  const source = readFileSync(join(client, file), "utf8");
  return source
    .replaceAll(
      /(?<= from ")(?:\.\.\/)+(?:contract|domain)\/[^"]+(?=")/g,
      own.startsWith(".") ? own : `./${own}`,
    )
    .replaceAll(/(?<= from "\.[^"]+\.)ts(?=")/g, "js");
}
