import { join } from "node:path";
import { claimPort } from "../../../support/port.ts";
import { isOk, ROOT, spawnBound, until } from "../../harness/processes.ts";
import { startRedis } from "../redis-server.ts";
import { askRedis } from "./bullmq.ts";
import { GRAPHILE_WORKER_QUERIES } from "./graphile-worker.ts";
import type { PeerName, ProgramSettings } from "./library-program.ts";
import { PG_BOSS_QUERIES } from "./pg-boss.ts";
import { askPostgres, type Prepared, type PrepareProduct, type Site, type StoredQueries } from "./product.ts";

const QUERIES: Record<Exclude<PeerName, "bullmq">, StoredQueries> = {
  "graphile-worker": GRAPHILE_WORKER_QUERIES,
  "pg-boss": PG_BOSS_QUERIES,
};

const SCHEMA_MS_MAX = 60_000;

/** A library as its users run it: a process with an HTTP API that creates jobs, and a process that does them. */
export function prepareLibrary(peer: PeerName): PrepareProduct {
  return async ({ wish, databaseUrl, db, folder, environment, profiled, stops }: Site): Promise<Prepared> => {
    const pids = new Map<string, number>();
    let server = databaseUrl;
    let asked: Pick<Prepared, "isOwing" | "countStored">;
    if (peer === "bullmq") {
      const redis = await startRedis(folder, stops);
      pids.set("redis", redis.pid);
      server = `redis://127.0.0.1:${redis.port}`;
      const client = new Bun.RedisClient(server);
      stops.push(() => client.close());
      asked = askRedis(client);
    } else asked = askPostgres(db, QUERIES[peer]);
    const port = await claimPort();
    const commandOf = (role: ProgramSettings["role"], port: number) => {
      const settings: ProgramSettings = {
        ...{ peer, role, server, port },
        ...{ isPunctual: wish.isPunctual ?? false, concurrency: wish.concurrency },
      };
      const flags = role === profiled ? ["--cpu-prof", "--cpu-prof-dir=/tmp"] : [];
      return [
        process.execPath,
        ...flags,
        join(import.meta.dir, "library-program.ts"),
        JSON.stringify(settings),
      ];
    };
    await runToEnd(commandOf("schema", 0));
    return {
      async start() {
        for (const role of ["api", "worker"] as const) {
          const readyPort = role === "api" ? port : await claimPort();
          pids.set(role, spawnBound(commandOf(role, readyPort), environment, stops));
          await until(`${peer} ${role} is ready`, () => isOk(`http://127.0.0.1:${readyPort}`));
        }
      },
      ...{ pids, port, usesPostgres: peer !== "bullmq", keys: [""], secrets: [] },
      ...asked,
    };
  };
}

async function runToEnd(command: string[]): Promise<void> {
  const child = Bun.spawn(command, {
    ...{ cwd: ROOT, stdio: ["ignore", "ignore", "inherit"], timeout: SCHEMA_MS_MAX },
  });
  if ((await child.exited) !== 0) throw new Error(`this failed: ${command.join(" ")}`);
}
