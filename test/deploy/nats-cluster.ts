import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findNatsServer } from "../support/nats-binary.ts";
import { claimPort } from "../support/port.ts";
import { readValues, writeConfiguration } from "./nats-chart.ts";

export interface NatsCluster {
  /** The URL with which this user logs in, listing all servers. */
  urlOf(user: string): string;
  /** The monitoring pages of each server, by its number. */
  monitors: string[];
  /** The log of all servers. */
  readonly log: string;
  kill(server: number): Promise<void>;
  stop(): Promise<void>;
}

const PASSWORD = "wheel";
/** Servers that find together do so within seconds, also on a busy machine. */
const READY_TIMEOUT_MS = 60_000;
const LOOK_EVERY_MS = 50;
const STARTS_MAX = 5;

/**
 * Starts real servers on the loopback address, configured as the chart would do it from deploy/nats/values.yaml. On a
 * busy machine about one of fifty new clusters forms its JetStream without one of its servers (2.10.27), and from then
 * on places no stream with three copies. Now and then a new cluster elects no leader at all. A new cluster replaces such a
 * cluster.
 */
export async function startNatsCluster(): Promise<NatsCluster> {
  for (let start = 1; ; start++) {
    const { cluster, isComplete } = await startServers();
    if (isComplete) return cluster;
    await cluster.stop();
    if (start === STARTS_MAX) throw new Error(`JetStream lacks a server or a leader:\n${cluster.log}`);
  }
}

async function startServers(): Promise<{ cluster: NatsCluster; isComplete: boolean }> {
  const binary = await findNatsServer();
  const values = readValues();
  const folder = mkdtempSync(join(tmpdir(), "nats-cluster-"));
  const environment = Object.fromEntries(
    ["GATEWAY", "WORKER", "DELIVERY"].map((user) => [`${user}_PASSWORD`, PASSWORD]),
  );
  const numbers = Array.from({ length: values.config.cluster.replicas }, (_, number) => number);
  const ports = await Promise.all(
    numbers.map(async () => ({
      client: await claimPort(),
      route: await claimPort(),
      monitor: await claimPort(),
    })),
  );
  const routes = ports.map(({ route }) => `nats://127.0.0.1:${route}`);
  let log = "";

  const servers = ports.map(({ client, route, monitor }, number) => {
    const home = join(folder, String(number));
    mkdirSync(home);
    const file = join(home, "nats.conf");
    const own = {
      server_name: `nats-${number}`,
      host: "127.0.0.1",
      port: client,
      http: `127.0.0.1:${monitor}`,
      cluster: { name: "nats", host: "127.0.0.1", port: route, routes, no_advertise: true },
    };
    writeFileSync(file, writeConfiguration(values, own, home));
    const command = [binary, "--config", file];
    const [program = "", ...args] =
      process.platform === "linux" ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
    const server = spawn(program, args, {
      env: { ...process.env, ...environment },
      stdio: ["ignore", "ignore", "pipe"],
    });
    server.stderr.on("data", (chunk) => (log += chunk));
    const ended = new Promise<void>((resolve) => server.on("exit", () => resolve()));
    return { server, ended };
  });
  const monitors = ports.map(({ monitor }) => `http://127.0.0.1:${monitor}`);
  const isHealthy = await becomeHealthy(monitors);

  const kill = async (number: number) => {
    servers[number]?.server.kill("SIGKILL");
    await servers[number]?.ended;
  };
  const cluster = {
    urlOf: (user: string) =>
      ports.map(({ client }) => `nats://${user}:${PASSWORD}@127.0.0.1:${client}`).join(","),
    monitors,
    get log() {
      return log;
    },
    kill,
    async stop() {
      for (const number of numbers) await kill(number);
      rmSync(folder, { recursive: true, force: true });
    },
  };
  return { cluster, isComplete: isHealthy && (await readMetaSize(monitors)) === numbers.length };
}

/** The number of servers that the leader of JetStream counts. */
async function readMetaSize(monitors: string[]): Promise<number> {
  const pages = monitors.map(async (monitor) => {
    const answer = await fetch(`${monitor}/jsz`);
    const page = (await answer.json()) as { meta_cluster?: { cluster_size?: number } };
    return page.meta_cluster?.cluster_size ?? 0;
  });
  return Math.max(...(await Promise.all(pages)));
}

/** Whether all servers become healthy in time. A healthy server has found the others and a leader among them. */
async function becomeHealthy(monitors: string[]): Promise<boolean> {
  const giveUpAt = performance.now() + READY_TIMEOUT_MS;
  for (const monitor of monitors) {
    const isHealthy = () =>
      fetch(`${monitor}/healthz`).then(
        ({ ok }) => ok,
        () => false,
      );
    while (!(await isHealthy())) {
      if (performance.now() > giveUpAt) return false;
      await Bun.sleep(LOOK_EVERY_MS);
    }
  }
  return true;
}
