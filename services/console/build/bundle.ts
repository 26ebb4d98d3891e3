import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { promisify } from "node:util";
import { brotliCompress, gzip, constants as zlib } from "node:zlib";
import { Glob } from "bun";

/** Builds what browsers load: scripts, styles and the icon, each under a name with the hash of its content. */

/** A file as browsers get it. */
export interface Asset {
  /** Such as `main-4f9a1c2e.js`. */
  name: string;
  type: string;
  bytes: Uint8Array<ArrayBuffer>;
  gzip: Uint8Array<ArrayBuffer>;
  brotli: Uint8Array<ArrayBuffer>;
}

export interface Bundle {
  /** The hash of all sources. */
  stamp: string;
  assets: Asset[];
}

/** The files that the first page names. They load the rest. */
export const ENTRIES = ["main.js", "main.css", "theme.js", "favicon.svg"] as const;
export type Entry = (typeof ENTRIES)[number];

const ROOM = dirname(import.meta.dir);
const APP = join(ROOM, "app");
const ROOT = dirname(dirname(ROOM));

const TYPES: Record<string, string> = {
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
  svg: "image/svg+xml",
};

/** Throws if the sources do not build. */
export async function buildBundle(): Promise<Bundle> {
  const stamp = stampOfSources();
  const built = await Bun.build({
    entrypoints: ["main.tsx", "main.css", "theme.ts"].map((name) => join(APP, name)),
    target: "browser",
    minify: true,
    naming: "[name]-[hash].[ext]",
    define: { "process.env.NODE_ENV": '"production"' },
  });
  const outputs = await Promise.all(
    built.outputs.map(async (output) => {
      return { name: basename(output.path), bytes: new Uint8Array(await output.arrayBuffer()) };
    }),
  );
  const icon = new Uint8Array(readFileSync(join(APP, "favicon.svg")));
  const assets = await Promise.all(
    [...outputs, { name: `favicon-${hashOf(icon).slice(0, 8)}.svg`, bytes: icon }].map(compress),
  );
  return { stamp, assets };
}

/** The asset that stands for an entry. Throws if there is none. */
export function findEntry(assets: readonly Asset[], entry: Entry): Asset {
  const [name = "", ending = ""] = entry.split(".");
  const found = assets.find(
    (asset) => asset.name.startsWith(`${name}-`) && asset.name.endsWith(`.${ending}`),
  );
  if (found === undefined) throw new Error(`the console's build has no ${entry}`);
  return found;
}

/** The hash of everything that goes into the build. */
export function stampOfSources(): string {
  const hash = createHash("sha256").update(Bun.version);
  const sources = ["services/console/**/*", "shared/{client,domain}/**/*.ts", "package.json"].flatMap(
    (pattern) => [...new Glob(pattern).scanSync({ cwd: ROOT })],
  );
  for (const file of sources.sort()) {
    if (/^services\/console\/dist\/|\.test\.ts$|test-support\.ts$|\.md$/.test(file)) continue;
    hash.update(`${file}\n`).update(readFileSync(join(ROOT, file)));
  }
  return hash.digest("hex");
}

async function compress({ name, bytes }: { name: string; bytes: Uint8Array<ArrayBuffer> }): Promise<Asset> {
  const type = TYPES[name.split(".").at(-1) ?? ""];
  if (type === undefined) throw new Error(`the console's build made ${name}, which has no known type`);
  const [zipped, brotli] = await Promise.all([
    promisify(gzip)(bytes, { level: 9 }),
    promisify(brotliCompress)(bytes, {
      params: { [zlib.BROTLI_PARAM_QUALITY]: 11, [zlib.BROTLI_PARAM_SIZE_HINT]: bytes.length },
    }),
  ]);
  return { name, type, bytes, gzip: new Uint8Array(zipped), brotli: new Uint8Array(brotli) };
}

function hashOf(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
