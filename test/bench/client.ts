import { connect } from "node:net";
// Bun replaces the bare name "undici" by a stub.
import { Agent } from "undici/index.js";
import { openOutbound } from "../../services/delivery/outbound.ts";
import { printTable, summarize } from "./harness/measure.ts";

/**
 * What does a POST cost the process, by delivery's client, by undici, and by a bare socket that does not parse the
 * answer? The target is a process of its own that answers every request.
 */

const ROUNDS = 5;
const ROUND_MS = 1_500;
const CONCURRENCY = 64;
const BODY = JSON.stringify({ text: "x".repeat(180) });
/** As many headers as an attempt has. */
const HEADERS = Object.fromEntries(
  Array.from({ length: 14 }, (_, index) => [`service-header-${index}`, "0123456789abcdef0123456789abcdef"]),
);
const ANSWER =
  "HTTP/1.1 200 OK\\r\\nserver: sink\\r\\ndate: Sun, 22 Nov 2026 12:00:00 GMT\\r\\ncontent-type: application/json\\r\\ncontent-length: 2\\r\\n\\r\\n{}";
const SINK = `
  const listener = Bun.listen({
    hostname: "127.0.0.1",
    port: 0,
    socket: { data(socket) { socket.write("${ANSWER}"); } },
  });
  console.log(listener.port);
`;

/** Sends one request after the other until `isOver` answers true. */
type Sender = (isOver: () => boolean, onSent: () => void) => Promise<void>;

async function main(): Promise<void> {
  const sink = Bun.spawn([process.execPath, "-e", SINK], { stdout: "pipe" });
  const { value } = await sink.stdout.getReader().read();
  const url = `http://127.0.0.1:${Number(new TextDecoder().decode(value))}`;
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const agent = new Agent({ pipelining: 1 });
  const { signal } = new AbortController();
  const senders: Record<string, Sender> = {
    "the client of delivery": async (isOver, onSent) => {
      while (!isOver()) {
        await outbound.post({ url: `${url}/hook`, headers: HEADERS, body: BODY, timeoutMs: 10_000, signal });
        onSent();
      }
    },
    undici: async (isOver, onSent) => {
      while (!isOver()) {
        const { body } = await agent.request({
          ...{ origin: url, path: "/hook", method: "POST", headers: HEADERS, body: BODY },
        });
        await body.dump();
        onSent();
      }
    },
    "a bare socket": (isOver, onSent) => sendBare(Number(new URL(url).port), isOver, onSent),
  };
  const costs = new Map<string, { cpuUs: number[]; perSecond: number[] }>();
  // The first round is for the compiler.
  for (let round = 0; round <= ROUNDS; round++) {
    for (const [name, sender] of Object.entries(senders)) {
      const { cpuUs, perSecond } = await measure(sender);
      const cost = costs.get(name) ?? { cpuUs: [], perSecond: [] };
      costs.set(name, cost);
      if (round === 0) continue;
      cost.cpuUs.push(cpuUs);
      cost.perSecond.push(perSecond);
    }
  }
  printTable(
    ["", "CPU a request, µs", "requests/s"],
    [...costs].map(([name, { cpuUs, perSecond }]) => [name, summarize(cpuUs), summarize(perSecond)]),
  );
  await Promise.all([outbound.close(), agent.destroy()]);
  sink.kill();
}

async function measure(sender: Sender): Promise<{ cpuUs: number; perSecond: number }> {
  let sent = 0;
  const startedAt = performance.now();
  const before = process.cpuUsage();
  const isOver = () => performance.now() - startedAt > ROUND_MS;
  await Promise.all(Array.from({ length: CONCURRENCY }, () => sender(isOver, () => sent++)));
  const { user, system } = process.cpuUsage(before);
  return { cpuUs: (user + system) / sent, perSecond: (sent * 1_000) / (performance.now() - startedAt) };
}

function sendBare(port: number, isOver: () => boolean, onSent: () => void): Promise<void> {
  const lines = Object.entries(HEADERS).map(([name, value]) => `${name}: ${value}\r\n`);
  const request = Buffer.from(
    `POST /hook HTTP/1.1\r\nhost: a\r\n${lines.join("")}content-length: ${BODY.length}\r\n\r\n${BODY}`,
  );
  return new Promise((resolve) => {
    const socket = connect({ port, host: "127.0.0.1", noDelay: true }, () => socket.write(request));
    socket.on("data", () => {
      onSent();
      if (!isOver()) socket.write(request);
      else socket.destroy();
    });
    socket.on("close", () => resolve());
  });
}

await main();
process.exit(0);
