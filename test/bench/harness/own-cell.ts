import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../../services/admin/create-project.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { createSeal } from "../../../shared/platform/seal/seal.ts";
import { migrate } from "../../../shared/store/cell/migrate.ts";
import { type Database, openDatabase } from "../../../shared/store/database/database.ts";
import { changeProject, type ProjectRow } from "../../../shared/store/resources/projects.ts";
import { testCause } from "../../support/cause.ts";
import { startNatsServer } from "../../support/nats-server.ts";
import { claimPort } from "../../support/port.ts";
import { createTestDatabase, hasOwnServer } from "../../support/postgres.ts";
import { type ServiceProcess, startService } from "../../support/service-process.ts";
import { beginUse, type Use } from "./meter.ts";
import { findServer, isOk, spawnBound, until } from "./processes.ts";
import { type Counts, type Received, SINK } from "./sink.ts";

/** More than a benchmark asks for. */
const REQUESTS_PER_MINUTE = 1_000_000;
const log = createLog({ name: "bench", level: "error" });

/** A gateway, a worker and a delivery node as processes over Postgres and NATS. */
export interface OwnCell {
  databaseUrl: string;
  /** The benchmark's own connection. */
  db: Database;
  gateway: ServiceProcess;
  worker: ServiceProcess;
  addProject(name: string): Promise<{ project: ProjectRow; key: string }>;
  /** A process that receives deliveries (sink.ts). */
  startSink(): Promise<Sink>;
  /** Measures the use of the cell and of others until the answered function is called. */
  beginUse(): Promise<() => Promise<Use>>;
}

export interface Sink {
  url: string;
  /** Begins all counts anew. `kept` names what is kept beside the number of requests. */
  begin(kept: string): Promise<unknown>;
  counts(): Promise<Counts>;
  received(): Promise<Received>;
}

export interface CellOptions {
  /** Fills the database before the services start. */
  fill?(cell: Pick<OwnCell, "databaseUrl" | "db" | "addProject">): Promise<void>;
  /** Further settings of the services. */
  settings?: Record<string, string>;
}

/** Makes a database and starts the services over it. Functions added to `stops` end the cell in reverse order. */
export async function startOwnCell(
  name: string,
  stops: (() => unknown)[],
  { fill, settings }: CellOptions = {},
): Promise<OwnCell> {
  const database = await createTestDatabase(name);
  stops.push(database.drop);
  await migrate(database.url);
  const db = openDatabase(database.url, { connections: 1, log });
  stops.push(db.close);
  const secretsKey = randomBytes(32);
  async function addProject(called: string) {
    const terms = { name: called, plan: "enterprise", defaultRegion: "us-east" } as const;
    const { project, keys } = await createProjectWithKeys(db, createSeal(secretsKey), terms);
    await changeProject(db, project.id, { requestsPerMinuteOverride: REQUESTS_PER_MINUTE }, testCause());
    return { project, key: keys.production };
  }
  await fill?.({ databaseUrl: database.url, db, addProject });

  const nats = await startNatsServer();
  stops.push(nats.stop);
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    LOG_LEVEL: "error",
    ...settings,
  };
  const start = async (service: "gateway" | "worker" | "delivery") => {
    const started = await startService(service, environment);
    stops.push(() => started.end("SIGKILL"));
    return started;
  };
  const [worker, delivery, gateway] = [
    await start("worker"),
    await start("delivery"),
    await start("gateway"),
  ];
  const sinks: number[] = [];
  return {
    ...{ databaseUrl: database.url, db, gateway, worker, addProject },
    async startSink() {
      const port = await claimPort();
      sinks.push(spawnBound([process.execPath, SINK, JSON.stringify({ port, body: "{}" })], {}, stops));
      const url = `http://127.0.0.1:${port}`;
      await until("the sink is ready", () => isOk(url));
      return {
        url,
        begin: (kept) => fetch(`${url}/begin?${kept}`),
        counts: async () => (await (await fetch(`${url}/counts`)).json()) as Counts,
        received: async () => (await (await fetch(url)).json()) as Received,
      };
    },
    async beginUse() {
      const services = Object.entries({ gateway, worker, delivery }).map(
        ([named, { pid }]) => [named, pid] as const,
      );
      const own = sinks.map((pid, index) => [`sink ${index}`, pid] as const);
      return beginUse({
        pids: new Map([...services, ["nats", nats.pid], ...own]),
        apart: {},
        postgres: {
          pid: await findServer(db),
          isOwn: hasOwnServer(),
          isCounted: true,
          findOthers: async () => [],
        },
      });
    },
  };
}
