import { type ChildProcess, spawn } from "node:child_process";
import { createServer } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { type Account, ENVIRONMENT, launch } from "./binaries.ts";
import { seenFromWithin } from "./cluster.ts";

const MAX_CONNECTIONS = 200;
const SHARED_BUFFERS = "256MB";

/** Long enough for the recovery after a crash, which replays all writes since the last checkpoint. */
const START_TIMEOUT_MS = 300_000;
const STOP_TIMEOUT_MS = 30_000;
const PORT_TRIES = 5;
const LOG_LINES_KEPT = 20;

interface ServerStart {
  cluster: string;
  clusterName: string;
  binaries: string;
  account: Account | undefined;
  log: (line: string) => void;
}

/** Tries another port if a process takes the free one before Postgres listens on it. */
export async function startServer(start: ServerStart): Promise<{ port: number; process: ChildProcess }> {
  for (let attempt = 1; ; attempt++) {
    const port = await findFreePort();
    const server = spawnServer(start, port);
    const failure = await waitUntilReady(server, start.log);
    if (failure === undefined) return { port, process: server };
    if (attempt === PORT_TRIES || !failure.includes("could not bind")) {
      throw new Error(`Postgres did not start:\n${failure}`);
    }
  }
}

export function spawnServer(
  { cluster, clusterName, binaries, account }: ServerStart,
  port: number,
): ChildProcess {
  const settings = {
    listen_addresses: "127.0.0.1",
    port,
    unix_socket_directories: "",
    max_connections: MAX_CONNECTIONS,
    shared_buffers: SHARED_BUFFERS,
    timezone: "UTC",
    log_timezone: "UTC",
    // Time, process and SQLSTATE.
    log_line_prefix: "%m [%p] %e ",
    cluster_name: clusterName,
  };
  const options = Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
  const command = [join(binaries, "bin", "postgres"), "-D", seenFromWithin(cluster), ...options];
  const [file, args] = launch(command, account, "INT");
  // `detached` gives it a session of its own: an interrupt typed at the terminal must not stop the database while services
  // still settle their last attempts.
  return spawn(file, args, {
    cwd: cluster,
    env: ENVIRONMENT,
    detached: true,
    stdio: ["ignore", "ignore", "pipe"],
  });
}

/** Returns undefined once the server accepts connections, or the end of its log if it ended instead. */
export function waitUntilReady(
  server: ChildProcess,
  log: (line: string) => void,
): Promise<string | undefined> {
  const { promise, resolve: settle } = Promise.withResolvers<string | undefined>();
  const lastLines: string[] = [];
  const timer = setTimeout(() => {
    server.kill("SIGKILL");
    lastLines.push(`it was not ready after ${START_TIMEOUT_MS} ms`);
  }, START_TIMEOUT_MS);
  const end = (failure: string | undefined) => {
    clearTimeout(timer);
    settle(failure);
  };
  if (server.stderr) {
    createInterface({ input: server.stderr }).on("line", (line) => {
      lastLines.push(line);
      if (lastLines.length > LOG_LINES_KEPT) lastLines.shift();
      log(line);
      if (line.includes("database system is ready to accept connections")) end(undefined);
    });
  }
  server.on("error", (error) => end(error.message));
  server.on("close", () => end(lastLines.join("\n")));
  return promise;
}

async function findFreePort(): Promise<number> {
  const { promise, resolve: settle, reject } = Promise.withResolvers<number>();
  const probe = createServer();
  probe.on("error", reject);
  probe.listen(0, "127.0.0.1", () => {
    const address = probe.address();
    const port = typeof address === "object" && address !== null ? address.port : 0;
    probe.close(() => settle(port));
  });
  return promise;
}

export async function stopServer(server: ChildProcess): Promise<void> {
  if (server.exitCode !== null || server.signalCode !== null) return;
  const ended = Promise.withResolvers<void>();
  server.once("exit", () => ended.resolve());
  server.kill("SIGINT");
  // An immediate shutdown loses no committed data: the next start replays the log.
  const timer = setTimeout(() => server.kill("SIGQUIT"), STOP_TIMEOUT_MS);
  await ended.promise;
  clearTimeout(timer);
}
