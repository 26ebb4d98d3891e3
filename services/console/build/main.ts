import { buildBundle } from "./bundle.ts";
import { keepBundle } from "./kept.ts";

/** `npm run console`: builds the console ahead of its first request, and prints what a first visit loads. */
const bundle = await buildBundle();
keepBundle(bundle);
const kilobytes = (bytes: number) => `${(bytes / 1024).toFixed(1)} KB`.padStart(10);
for (const { name, bytes, brotli } of bundle.assets) {
  process.stdout.write(
    `${name.padEnd(24)}${kilobytes(bytes.length)}  compressed ${kilobytes(brotli.length)}\n`,
  );
}
const sum = bundle.assets.reduce((total, { brotli }) => total + brotli.length, 0);
process.stdout.write(`${"first load".padEnd(24)}${"".padStart(10)}  compressed ${kilobytes(sum)}\n`);
