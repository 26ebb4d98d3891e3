import { expect } from "bun:test";
import { randomBytes } from "node:crypto";
import { rmSync } from "node:fs";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { listNodes, type NodeRow } from "../../shared/store/cell/nodes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { until } from "../flow/support.ts";
import { askAdmin } from "../support/admin-program.ts";
import { openPatientDatabase } from "../support/database.ts";
import { createLoad, expectNothingDoubled, type Load } from "../support/load.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase } from "../support/postgres.ts";
import { recordPauses } from "../support/recorded-pauses.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { type Arrival, startTarget, type Target } from "../support/target.ts";

export const LEASE_TTL_MS = 2_000;
/**
 * What an operator asks for has happened by then. On an idle machine it takes a second or two. Without the operator's word the lost
 * attempts would wait for their own timeout of 900 s.
 */
export const SOON_MS = 60_000;
const DRAINED_MS = 180_000;
/** The interval between two jobs of a stream. */
const POST_EVERY_MS = 200;
/**
 * A stream without an arrival for this long is not being sent. A slow machine has more time, but less than the 10 s between two sweeps
 * for what no message tells of.
 */
const WINDOW_MS = { min: 1_500, max: 4_000 };
/** The part of the time waited so far, between these two, that makes the window. */
const WINDOW_PART = 0.25;
/** The promise to operators: after this time no held job or webhook is sent any more. */
const HOLDS_MS = 5_000;
/** More time than the streams take to go on, on an idle machine. */
const GOES_ON_MS = 60_000;

export type NodeName = "worker-a" | "worker-b" | "delivery-a" | "delivery-b";
type ProjectName = "alpha" | "beta" | "gamma";

/** The jobs of one project and region. The targets of gamma's jobs and its endpoint are at another host. */
export type Stream =
  | "alpha us-east"
  | "alpha eu-central"
  | "beta us-east"
  | "beta eu-central"
  | "gamma us-east";
export const STREAMS: readonly Stream[] = [
  "alpha us-east",
  "alpha eu-central",
  "beta us-east",
  "beta eu-central",
  "gamma us-east",
];
export const HOST_OF_GAMMA = "localhost";

interface Project {
  id: string;
  no: number;
  key: string;
  load: Load;
}

/** Two of each node and a gateway as real processes, under a steady load of five streams with their webhooks. */
export interface OperatedCell {
  db: Database;
  url: string;
  target: Target;
  services: Record<NodeName | "gateway", ServiceProcess>;
  projects: Record<ProjectName, Project>;
  /** Starts another worker or delivery node. */
  start(kind: "worker" | "delivery", name: string): Promise<ServiceProcess>;
  /**
   * Resolves once jobs and webhooks of exactly these streams have arrived for a while. Rejects if that takes too long,
   * or if another stream arrives later than a hold allows.
   */
  untilOnly(streams: readonly Stream[]): Promise<void>;
  /** Answers none of the matching arrivals from now on, until the returned function is called. */
  hold(fits: (arrival: Arrival) => boolean): () => void;
  ask<T>(project: ProjectName, method: string, path: string, body?: object): Promise<T>;
  /** Kills NATS and starts it again empty. */
  loseNats(): Promise<void>;
  stopLoad(): Promise<void>;
  stop(): Promise<void>;
}

export async function startOperatedCell(): Promise<OperatedCell> {
  const database = await createMigratedDatabase("operators");
  const db = openPatientDatabase(database.url, 2);
  let nats: NatsServer = await startNatsServer();
  const secretsKey = randomBytes(32);
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    LEASE_TTL_MS: String(LEASE_TTL_MS),
    SHARDS_PER_REGION: "8",
    DRAIN_TIMEOUT_MS: "5000",
  };
  const start = (kind: "worker" | "delivery", name: string) =>
    startService(kind, { ...environment, NODE_NAME: name });
  const started = await Promise.all([
    startService("gateway", environment),
    start("worker", "worker-a"),
    start("worker", "worker-b"),
    start("delivery", "delivery-a"),
    start("delivery", "delivery-b"),
  ]);
  const [gateway, workerA, workerB, deliveryA, deliveryB] = started;
  const services = {
    gateway,
    "worker-a": workerA,
    "worker-b": workerB,
    "delivery-a": deliveryA,
    "delivery-b": deliveryB,
  };
  const base = () => `http://127.0.0.1:${gateway.port}`;

  let heard: { at: number; name: string }[] = [];
  const lastHeardAt = new Map<string, number>();
  let isHeld: (arrival: Arrival) => boolean = () => false;
  let released = Promise.withResolvers<void>();
  const target = startTarget(async (arrival) => {
    const body = JSON.parse(arrival.body);
    const isJob = arrival.jobId !== "";
    const stream = isJob ? body.stream : `${nameOfProject(body.project_id)} ${body.data.job.region}`;
    const name = `${isJob ? "job" : "webhook"} of ${stream}`;
    heard.push({ at: Date.now(), name });
    lastHeardAt.set(name, Date.now());
    while (isHeld(arrival)) await released.promise;
    return new Response("", { status: body.fails && arrival.attempt === 1 ? 500 : 200 });
  });
  const elsewhere = target.url.replace("127.0.0.1", HOST_OF_GAMMA);
  const urlOf = (project: ProjectName) => (project === "gamma" ? elsewhere : target.url);

  const projects = {} as Record<ProjectName, Project>;
  const nameOfProject = (id: string) =>
    (Object.keys(projects) as ProjectName[]).find((name) => projects[name].id === id) ?? "nobody";
  async function ask<T>(project: ProjectName, method: string, path: string, body?: object): Promise<T> {
    const response = await fetchServed(`${base()}${path}`, {
      method,
      headers: { authorization: `Bearer ${projects[project].key}`, "content-type": "application/json" },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as T;
  }
  for (const name of ["alpha", "beta", "gamma"] as const) {
    const terms = { name, plan: "scale", defaultRegion: "us-east" } as const;
    const { project, keys } = await createProjectWithKeys(db, createSeal(secretsKey), terms);
    projects[name] = {
      id: project.id,
      no: project.no,
      key: keys.production,
      load: createLoad(base, keys.production),
    };
    await db.run("limits", "UPDATE projects SET requests_per_minute = 1000000", []);
    await ask(name, "POST", "/v2/webhooks", { url: urlOf(name), events: ["job.succeeded"] });
  }
  const running = STREAMS.map((stream) => {
    const [project, region] = stream.split(" ") as [ProjectName, Region];
    const body = { target_url: urlOf(project), region, payload: { stream } };
    return projects[project].load.begin(() => body, POST_EVERY_MS);
  });

  return {
    db,
    url: database.url,
    target,
    services,
    projects,
    start,
    async untilOnly(streams) {
      // What a node had claimed it sends later if the machine holds up the node, and the target hears of it later still.
      const pauses = await recordPauses(database.url, () => [nats, ...Object.values(services)]);
      const since = Date.now();
      const wanted = streams.flatMap((stream) => [`job of ${stream}`, `webhook of ${stream}`]).sort();
      let seen: string[] = [];
      await until(() => {
        const now = Date.now();
        const windowMs = Math.min(Math.max(WINDOW_MS.min, WINDOW_PART * (now - since)), WINDOW_MS.max);
        heard = heard.filter(({ at }) => at > now - WINDOW_MS.max);
        seen = [...new Set(heard.filter(({ at }) => at > now - windowMs).map(({ name }) => name))].sort();
        return now > since + windowMs && String(seen) === String(wanted);
      }, GOES_ON_MS)
        .catch(() => {
          throw new Error(`arrived: ${seen}\nnot: ${wanted}`);
        })
        .finally(() => pauses.stop());
      const late = [...lastHeardAt].filter(
        ([name, at]) => !wanted.includes(name) && at - since - pauses.between(since, at) > HOLDS_MS,
      );
      expect(late).toEqual([]);
    },
    hold(fits) {
      isHeld = fits;
      return () => {
        isHeld = () => false;
        released.resolve();
        released = Promise.withResolvers();
      };
    },
    ask,
    async loseNats() {
      await nats.kill("SIGKILL");
      rmSync(nats.storeDir, { recursive: true, force: true });
      nats = await startNatsServer({ port: nats.port, storeDir: nats.storeDir });
    },
    async stopLoad() {
      for (const load of running) await load.stop();
    },
    async stop() {
      for (const load of running) await load.stop();
      for (const service of Object.values(services)) await service.end("SIGKILL");
      await nats.stop();
      await db.close();
      await target.stop();
      await database.drop();
    },
  };
}

/** The latest incarnation of the node of this name. */
export async function latestOf({ db }: OperatedCell, name: string): Promise<NodeRow> {
  const node = (await listNodes(db)).filter((each) => each.name === name).at(-1);
  if (node === undefined) throw new Error(`no node ${name}`);
  return node;
}

export async function countOf({ db }: OperatedCell, from: string, values: unknown[] = []): Promise<number> {
  const text = `SELECT count(*)::int AS count FROM ${from}`;
  return (await db.run<{ count: number }>(`count ${Bun.hash(from)}`, text, values))[0]?.count ?? -1;
}

/** Declares a living node dead, runs `between`, waits until the node has ended itself, and starts it again. */
export async function declareDeadAlive(
  cell: OperatedCell,
  name: NodeName,
  between: (id: number) => Promise<void> = async () => {},
): Promise<void> {
  const service = cell.services[name];
  const { id } = await latestOf(cell, name);
  await askAdmin(cell.url, "node", "dead", name);
  await between(id);
  await until(() => service.output.includes("declared dead"), SOON_MS);
  // The node has ended by itself; the call only reads its exit code.
  expect(await service.end("SIGTERM")).toBe(1);
  expect(await latestOf(cell, name)).toMatchObject({ id, dead: true });
  await service.startAgain();
  expect((await latestOf(cell, name)).id).toBeGreaterThan(id);
  await cell.untilOnly(STREAMS);
}

/** Expects that every job has succeeded, no attempt arrived twice, and no permit is in use. */
export async function expectAllEnded(cell: OperatedCell): Promise<void> {
  await cell.stopLoad();
  await until(
    async () => (await countOf(cell, "open_jobs")) + (await countOf(cell, "open_deliveries")) === 0,
    DRAINED_MS,
  );
  const accepted = Object.values(cell.projects).reduce((sum, { load }) => sum + load.accepted.size, 0);
  expect(accepted).toBeGreaterThan(200);
  const ended = "EXISTS (SELECT FROM ended_jobs e WHERE e.job_id = j.id AND e.status = 0)";
  expect(await countOf(cell, `jobs j WHERE ${ended}`)).toBeGreaterThanOrEqual(accepted);
  expect(await countOf(cell, `jobs j WHERE NOT ${ended}`)).toBe(0);
  const jobs = cell.target.arrivals.filter(({ jobId }) => jobId !== "");
  expectNothingDoubled({ ...cell.target, arrivals: jobs });
  const inUse = "development_jobs + production_jobs + development_webhooks + production_webhooks";
  expect(await countOf(cell, `flows WHERE ${inUse} <> 0`)).toBe(0);
}
