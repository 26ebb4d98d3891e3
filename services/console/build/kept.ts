import { mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { type Bundle, buildBundle, stampOfSources } from "./bundle.ts";

/** The one file that keeps a build. It gets its name once it is complete. */
const FILE = join(dirname(import.meta.dir), "dist", "console.json");

/** The build of the present sources: the kept one if it is of these, else a new one, which is kept if it can be. */
export async function openBundle(): Promise<Bundle> {
  const kept = readKept();
  if (kept !== null && kept.stamp === stampOfSources()) return kept;
  const bundle = await buildBundle();
  try {
    keepBundle(bundle);
  } catch {
    // The folder may be read-only. Then each process builds for itself.
  }
  return bundle;
}

export function keepBundle({ stamp, assets }: Bundle): void {
  const text = (bytes: Uint8Array) => Buffer.from(bytes).toString("base64");
  const kept = assets.map(({ name, type, bytes, gzip, brotli }) => {
    return { name, type, bytes: text(bytes), gzip: text(gzip), brotli: text(brotli) };
  });
  mkdirSync(dirname(FILE), { recursive: true });
  writeFileSync(`${FILE}.${process.pid}`, JSON.stringify({ stamp, assets: kept }));
  renameSync(`${FILE}.${process.pid}`, FILE);
}

type Text<Of> = { [Name in keyof Of]: Of[Name] extends Uint8Array ? string : Of[Name] };

function readKept(): Bundle | null {
  try {
    const { stamp, assets } = JSON.parse(readFileSync(FILE, "utf8")) as {
      stamp: string;
      assets: Text<Bundle["assets"][number]>[];
    };
    const bytesOf = (text: string) => new Uint8Array(Buffer.from(text, "base64"));
    return {
      stamp,
      assets: assets.map(({ name, type, bytes, gzip, brotli }) => {
        return { name, type, bytes: bytesOf(bytes), gzip: bytesOf(gzip), brotli: bytesOf(brotli) };
      }),
    };
  } catch {
    return null;
  }
}
