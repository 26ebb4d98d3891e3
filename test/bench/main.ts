import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";

/** Runs one benchmark of this folder by its name with the arguments that follow, or lists them all. */

async function main(): Promise<number> {
  const [name, ...args] = process.argv.slice(2);
  const names = findBenchmarks();
  if (name !== undefined && names.includes(name)) return await run(name, args);
  if (name !== undefined) console.error(`There is no benchmark "${name}".`);
  console.log("npm run bench -- NAME\n");
  const width = Math.max(...names.map((each) => each.length));
  for (const each of names) console.log(`${each.padEnd(width)}  ${describe(each)}`);
  return name === undefined ? 0 : 1;
}

function findBenchmarks(): string[] {
  return readdirSync(import.meta.dir)
    .filter((file) => file.endsWith(".ts") && file !== "main.ts")
    .map((file) => basename(file, ".ts"))
    .toSorted();
}

/** The first sentence of the benchmark's first doc comment. */
function describe(name: string): string {
  const source = readFileSync(fileOf(name), "utf8");
  const comment = /\/\*\*(.*?)\*\//s.exec(source)?.[1] ?? "";
  const text = comment.replaceAll(/\s*\n\s*\*\s?/g, " ").trim();
  return /^.*?[.?](?=\s|$)/.exec(text)?.[0] ?? text;
}

// The benchmark runs in a process of its own, so that it measures only itself.
function run(name: string, args: string[]): Promise<number> {
  return Bun.spawn([process.execPath, fileOf(name), ...args], { stdio: ["inherit", "inherit", "inherit"] })
    .exited;
}

function fileOf(name: string): string {
  return join(import.meta.dir, `${name}.ts`);
}

process.exitCode = await main();
