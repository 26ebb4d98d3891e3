import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { findNatsServer } from "./nats-binary.ts";
import { claimPort } from "./port.ts";

const START_TIMEOUT_MS = 120_000;
const STOP_TIMEOUT_MS = 60_000;
const LOG_LINES_KEPT = 20;

export interface NatsServer {
  url: string;
  port: number;
  storeDir: string;
  pid: number;
  /** Sends any signal, SIGSTOP and SIGCONT included. After SIGKILL it resolves once the process is gone. */
  kill(signal: NodeJS.Signals): Promise<void>;
  /** Ends the process, and removes the store if it was made here. May be called again, also after kill. */
  stop(): Promise<void>;
}

/**
 * A real nats-server with JetStream on the loopback address, ready when this resolves. With the port and storeDir of a
 * killed server it continues as that one. It dies with the test process (on Linux).
 */
export async function startNatsServer({
  port: formerPort,
  storeDir,
}: {
  port?: number;
  storeDir?: string;
} = {}): Promise<NatsServer> {
  const binary = await findNatsServer();
  const port = formerPort ?? (await claimPort());
  const store = storeDir ?? mkdtempSync(join(tmpdir(), "nats-server-"));
  const command = [
    binary,
    "--jetstream",
    "--addr",
    "127.0.0.1",
    "--port",
    String(port),
    "--store_dir",
    store,
  ];
  const [file = "", ...args] =
    process.platform === "linux" ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
  const server = spawn(file, args, { stdio: ["ignore", "ignore", "pipe"] });

  const ready = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const lastLines: string[] = [];
  createInterface({ input: server.stderr }).on("line", (line) => {
    lastLines.push(line);
    if (lastLines.length > LOG_LINES_KEPT) lastLines.shift();
    if (line.includes("Server is ready")) ready.resolve();
  });
  server.on("error", ready.reject);
  server.on("exit", () => ended.resolve());
  server.on("close", () => ready.reject(new Error(`nats-server did not start:\n${lastLines.join("\n")}`)));
  const timer = setTimeout(() => server.kill("SIGKILL"), START_TIMEOUT_MS);
  await ready.promise.finally(() => clearTimeout(timer));

  const kill = async (signal: NodeJS.Signals) => {
    server.kill(signal);
    if (signal === "SIGKILL") await ended.promise;
  };
  return {
    url: `nats://127.0.0.1:${port}`,
    port,
    storeDir: store,
    pid: server.pid ?? 0,
    kill,
    stop: async () => {
      server.kill("SIGTERM");
      // A server that a test has stopped with SIGSTOP does not react to SIGTERM.
      const overdue = setTimeout(() => server.kill("SIGKILL"), STOP_TIMEOUT_MS);
      await ended.promise;
      clearTimeout(overdue);
      if (storeDir === undefined) rmSync(store, { recursive: true, force: true });
    },
  };
}
