import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import { parseArgs } from "node:util";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import type { RateLimiter } from "../../services/gateway/rate/limiter.ts";
import { startGateway } from "../../services/gateway/start.ts";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { openDatabase } from "../../shared/store/database/database.ts";
import { changeProject } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { median, printTable, summarize } from "./measure.ts";

/**
 * What does the exact request rate cost a gateway? Two gateway processes over one Postgres with fsync, one with the check
 * and one that accepts everything, take turns at creating jobs one by one over as many connections as asked for, in many
 * short rounds, since what else the machine does comes and goes. The limit is 10 % of the throughput.
 */

const CONNECTIONS = 8;
const WARMUP_SECONDS = 2;
const log = createLog({ name: "rate", level: "error" });

const [mode, ...words] = process.argv.slice(2);
if (mode === "serve") await serve(words[0] === "checked", words[1] ?? "");
else await main();

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      seconds: { type: "string", default: "1" },
      rounds: { type: "string", default: "25" },
      connections: { type: "string", default: "1,16,64" },
    },
  });
  const database = await createTestDatabase("rate");
  await migrate(database.url);
  const key = await addProject(database.url);
  const gateways = {
    checked: await startServing("checked", database.url),
    unchecked: await startServing("unchecked", database.url),
  };
  const rows: string[][] = [];
  for (const connections of values.connections.split(",").map(Number)) {
    const rates = { checked: [] as number[], unchecked: [] as number[] };
    for (const name of ["checked", "unchecked"] as const) {
      await flood(gateways[name].port, key, connections, WARMUP_SECONDS);
    }
    for (let round = 0; round < Number(values.rounds); round++) {
      // Each is first as often as the other: what a round leaves to Postgres, the next one pays.
      for (const name of round % 2 === 0
        ? (["checked", "unchecked"] as const)
        : (["unchecked", "checked"] as const)) {
        rates[name].push(await flood(gateways[name].port, key, connections, Number(values.seconds)));
      }
    }
    const costs = rates.checked.map(
      (rate, round) => 100 * (1 - rate / (rates.unchecked[round] ?? Number.NaN)),
    );
    rows.push([
      String(connections),
      summarize(rates.checked),
      summarize(rates.unchecked),
      `${median(costs).toFixed(1)} % (${Math.min(...costs).toFixed(1)} to ${Math.max(...costs).toFixed(1)})`,
    ]);
  }
  printTable(["connections", "checked, requests/s", "unchecked, requests/s", "cost of the check"], rows);
  for (const { stop } of Object.values(gateways)) stop();
  await database.drop();
  process.exit(0);
}

async function addProject(url: string): Promise<string> {
  const db = openDatabase(url, { connections: 1, log });
  const terms = { name: "rate", plan: "enterprise", defaultRegion: "us-east" } as const;
  const { project, keys } = await createProjectWithKeys(db, createSeal(randomBytes(32)), terms);
  await changeProject(db, project.id, { requestsPerMinuteOverride: 1_000_000 }, testCause());
  await db.close();
  return keys.production;
}

/** Serves until its end, and prints its port first. */
async function serve(isChecked: boolean, url: string): Promise<void> {
  const acceptAll: RateLimiter = {
    take: async () => ({ limit: 1, remaining: 1, resetMs: 0, retryAfterMs: null }),
    stop: async () => undefined,
  };
  const { port } = await startGateway({
    host: "127.0.0.1",
    port: 0,
    db: openDatabase(url, { connections: CONNECTIONS, log }),
    bus: createInProcessBus(log),
    clock: { now: () => Date.now(), stop() {} },
    log,
    metrics: createMetrics(),
    shardsPerRegion: 64,
    targets: { allowInsecure: false, own: [] },
    seal: createSeal(randomBytes(32)),
    publicUrl: null,
    ...(isChecked ? {} : { rateLimiter: acceptAll }),
  });
  console.log(port);
}

async function startServing(name: string, url: string): Promise<{ port: number; stop(): void }> {
  const command = [process.execPath, import.meta.path, "serve", name, url];
  const child = Bun.spawn(command, { stdout: "pipe", stderr: "inherit" });
  const { value } = await child.stdout.getReader().read();
  return { port: Number(new TextDecoder().decode(value)), stop: () => child.kill("SIGKILL") };
}

/** Creates jobs over so many connections, on each one after the other; answers how many a second. */
async function flood(port: number, key: string, connections: number, seconds: number): Promise<number> {
  const body = JSON.stringify({ target_url: "https://example.com/hook", payload: { text: "x".repeat(180) } });
  const request = `POST /v2/jobs HTTP/1.1\r\nHost: bench.example\r\nAuthorization: Bearer ${key}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  let count = 0;
  let isOver = false;
  const ended = Array.from({ length: connections }, () => {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const socket = connect(port, "127.0.0.1", () => socket.write(request));
    socket.setNoDelay(true);
    let text = "";
    socket.on("data", (chunk: Buffer) => {
      text += chunk.toString("latin1");
      const head = text.indexOf("\r\n\r\n");
      const length = Number(/content-length: (\d+)/i.exec(text)?.[1]);
      if (head === -1 || text.length < head + 4 + length) return;
      if (!text.startsWith("HTTP/1.1 201")) reject(new Error(text));
      text = "";
      count++;
      if (isOver) socket.end();
      else socket.write(request);
    });
    socket.on("close", () => resolve());
    socket.on("error", reject);
    return promise;
  });
  const startedAt = performance.now();
  await Bun.sleep(seconds * 1_000);
  const rate = (count * 1_000) / (performance.now() - startedAt);
  isOver = true;
  await Promise.all(ended);
  return rate;
}
