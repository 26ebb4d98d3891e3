import { readFileSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { parseArgs } from "node:util";
import { stopOwnServer } from "../support/postgres.ts";
import { installPeers, versionsOfPeers } from "./peers/install.ts";
import { measureLimits } from "./peers/limits.ts";
import { batch, create } from "./peers/parts/create.ts";
import { endToEnd } from "./peers/parts/end-to-end.ts";
import { lateness } from "./peers/parts/lateness.ts";
import type { Extent, Part } from "./peers/parts/part.ts";
import { immediate, rates } from "./peers/parts/rates.ts";
import { projects, shards, waiting } from "./peers/parts/scale.ts";
import { stored } from "./peers/parts/stored.ts";
import { tls } from "./peers/parts/tls.ts";
import { drawPictures } from "./peers/pictures.ts";
import { printResults } from "./peers/print.ts";
import { prepareCell, prepareStandalone } from "./peers/products/jobwheel.ts";
import { prepareLibrary } from "./peers/products/library.ts";
import type { PrepareProduct } from "./peers/products/product.ts";
import { redisVersion } from "./peers/redis-server.ts";
import type { Results, Sample } from "./peers/results.ts";
import { type Measured, startStage } from "./peers/stage.ts";

/**
 * How fast is jobwheel beside graphile-worker, pg-boss and BullMQ on this machine, and how near the limit? Everything
 * runs as processes: the products, a sink that counts jobs and reads their bodies, and a load generator. Products take
 * turns in each round of each part, and each measurement starts its product anew, on the same Postgres. The command
 * installs the peers and their redis-server into the cache.
 *
 * `--parts NAMES` (all), `--products NAMES` (jobwheel,graphile-worker,pg-boss,bullmq; also standalone), `--rounds N` (3),
 * `--seconds N` (10; end to end takes six times as long), `--jobs N` (50,000) stored due jobs, `--waiting N` (1,000,000),
 * `--concurrency N` (100) deliveries at once for graphile-worker and BullMQ. `--json FILE` writes all samples, and
 * `--pictures FOLDER` draws them. `--from FILE` measures nothing and shows the samples of a file that was written before.
 * `--profile PROCESS` leaves that process's CPU profile in the folder for temporary files.
 */

const PARTS: Record<string, Part> = {
  ...{ create, batch, stored, "end-to-end": endToEnd, lateness, immediate, rates },
  ...{ tls, waiting, projects, shards },
};
const LIMITS = "limits";
const OURS = ["jobwheel", "standalone"];
const PRODUCTS: Record<string, PrepareProduct> = {
  jobwheel: prepareCell,
  standalone: prepareStandalone,
  "graphile-worker": prepareLibrary("graphile-worker"),
  "pg-boss": prepareLibrary("pg-boss"),
  bullmq: prepareLibrary("bullmq"),
};

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      parts: { type: "string", default: [LIMITS, ...Object.keys(PARTS)].join(",") },
      products: { type: "string", default: "jobwheel,graphile-worker,pg-boss,bullmq" },
      rounds: { type: "string", default: "3" },
      seconds: { type: "string", default: "10" },
      jobs: { type: "string", default: "50000" },
      waiting: { type: "string", default: "1000000" },
      json: { type: "string" },
      pictures: { type: "string" },
      from: { type: "string" },
      concurrency: { type: "string" },
      profile: { type: "string" },
    },
  });
  const results =
    values.from === undefined
      ? await measureAll(values, (soFar) => keep(soFar, values.json))
      : (JSON.parse(readFileSync(values.from, "utf8")) as Results);
  if (values.pictures !== undefined) drawPictures(results, values.pictures);
  printResults(results);
  return results.faults.length === 0 ? 0 : 1;
}

/** Writes the results after each measurement, since a run takes long. */
function keep(results: Results, file: string | undefined): void {
  if (file !== undefined) writeFileSync(file, `${JSON.stringify(results, null, 1)}\n`);
}

interface Wanted {
  parts: string;
  products: string;
  rounds: string;
  seconds: string;
  jobs: string;
  waiting: string;
  concurrency?: string | undefined;
  profile?: string | undefined;
}

async function measureAll(wanted: Wanted, onMeasured: (soFar: Results) => void): Promise<Results> {
  const concurrency = wanted.concurrency === undefined ? undefined : Number(wanted.concurrency);
  const products = listNames(wanted.products, Object.keys(PRODUCTS));
  const parts = listNames(wanted.parts, [LIMITS, ...Object.keys(PARTS)]);
  const extent: Extent = {
    ...{ seconds: Number(wanted.seconds), jobs: Number(wanted.jobs), waiting: Number(wanted.waiting) },
  };
  if (products.some((product) => !OURS.includes(product))) installPeers();
  const redis = products.includes("bullmq") ? redisVersion() : undefined;
  const results: Results = {
    begunAt: new Date().toISOString(),
    endedAt: "",
    machine: `${cpus().length} cores (${cpus()[0]?.model ?? "unknown"})`,
    command: `npm run bench -- peers ${process.argv.slice(2).join(" ")}`.trim(),
    versions: { bun: Bun.version, ...versionsOfPeers(), redis: redis ?? "none" },
    products,
    titles: Object.fromEntries(parts.map((name) => [name, PARTS[name]?.title ?? "limits of this machine"])),
    samples: [],
    faults: [],
  };
  const { samples, faults } = results;
  const attempt = async (at: Omit<Sample, keyof Measured>, measure: () => Promise<Measured[]>) => {
    const place = `${at.part}, round ${at.round + 1}: ${at.product}`;
    process.stderr.write(`${new Date().toISOString().slice(11, 19)} ${place}\n`);
    try {
      for (const measured of await measure()) samples.push({ ...at, ...measured });
    } catch (error) {
      faults.push(`${place}: ${error instanceof Error ? error.message : error}`);
      process.stderr.write(`${faults.at(-1)}\n`);
    }
    results.endedAt = new Date().toISOString();
    onMeasured(results);
  };
  for (const name of parts) {
    const part = PARTS[name];
    for (let round = 0; round < Number(wanted.rounds); round++) {
      if (part === undefined) {
        await attempt({ part: name, product: "limit", round }, () => measureLimits(extent.seconds));
        continue;
      }
      // Each round begins with another product and another point, since the first one finds the machine as the round before left it.
      for (const product of turned(products, round)) {
        const prepare = PRODUCTS[product];
        if (prepare === undefined || (part.isOurs && !OURS.includes(product))) continue;
        for (const { wish, measure } of turned(part.points(extent), round)) {
          await attempt({ part: name, product, round }, async () => {
            const stage = await startStage({
              prepare,
              wish: { ...wish, concurrency },
              profiled: wanted.profile,
            });
            try {
              return [stage.starting, ...(await measure(stage))];
            } finally {
              await stage.stop();
            }
          });
        }
      }
    }
  }
  return results;
}

/** The list, begun at another of its items in each round. */
function turned<Item>(list: readonly Item[], round: number): Item[] {
  const first = round % list.length;
  return [...list.slice(first), ...list.slice(0, first)];
}

function listNames(text: string, known: string[]): string[] {
  const names = text.split(",");
  const unknown = names.filter((name) => !known.includes(name));
  if (unknown.length > 0)
    throw new Error(`There is no ${unknown.join(", ")}; there are ${known.join(", ")}.`);
  return names;
}

process.exitCode = await main();
await stopOwnServer();
