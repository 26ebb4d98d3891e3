import { parseArgs } from "node:util";
import { openOutbound } from "../../services/delivery/outbound.ts";
import { measureAttack } from "../hostile/attack.ts";
import { answerOf, startRawServer } from "../runtime-contract/raw-server.ts";
import { printTable } from "./harness/measure.ts";

/**
 * What do hostile targets leave behind in a delivery node, and does it wait for a slow answer? A worker and a delivery
 * node run over a real Postgres (TEST_DATABASE_URL) in a process of their own; the targets are in this one.
 *
 * `--attempts N` (10,000) at targets of every hostile kind, `--rounds N` (5), and `--minutes N` (6): one target waits
 * so long before its head and another before its body; 0 leaves this part out.
 */

const WARM_UP_ATTEMPTS = 1_000;
const MEGABYTE = 1_000_000;

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      attempts: { type: "string", default: "10000" },
      rounds: { type: "string", default: "5" },
      minutes: { type: "string", default: "6" },
    },
  });
  const { rounds, openCount } = await measureAttack({
    warmUp: WARM_UP_ATTEMPTS,
    attempts: Number(values.attempts),
    rounds: Number(values.rounds),
  });
  const before = rounds[0]?.rssBytes ?? Number.NaN;
  printTable(
    ["attempts", "RSS, MB", "of before", "heap, MB", "neighbour late, ms", "descriptors left"],
    rounds.map(({ attempts, rssBytes, heapBytes, neighbourLateMs, fdsLeft }) => [
      String(attempts),
      (rssBytes / MEGABYTE).toFixed(1),
      `${((100 * rssBytes) / before).toFixed(1)} %`,
      (heapBytes / MEGABYTE).toFixed(1),
      neighbourLateMs.toFixed(1),
      String(fdsLeft),
    ]),
  );
  console.log(`connections open at the targets: ${openCount}`);
  if (Number(values.minutes) > 0) await waitLong(60_000 * Number(values.minutes));
}

async function waitLong(pauseMs: number): Promise<void> {
  const server = await startRawServer((socket, request) => {
    const afterHead = request.includes("/after-head");
    if (afterHead) socket.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
    setTimeout(() => socket.write(afterHead ? "ok" : answerOf("200 OK", {}, "ok")), pauseMs);
  });
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const rows = await Promise.all(
    ["before-head", "after-head"].map(async (moment) => {
      const exchange = await outbound.post({
        url: `${server.url}/${moment}`,
        headers: {},
        body: "{}",
        timeoutMs: 2 * pauseMs,
        signal: new AbortController().signal,
      });
      const outcome =
        exchange.kind === "answered" ? `${exchange.status}, ${exchange.bodyEnd}` : exchange.kind;
      return [moment, outcome];
    }),
  );
  console.log(`\nA target that pauses for ${pauseMs / 60_000} minutes:`);
  printTable(["moment of the pause", "outcome"], rows);
  await outbound.close();
  await server.stop();
}

await main();
process.exit(0);
