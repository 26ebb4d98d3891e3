import { openOutbound } from "../../services/delivery/outbound.ts";

/**
 * A program that sends one POST to the URL in its argument, where every name resolves to this machine, and prints the
 * outcome.
 */

const TIMEOUT_MS = 10_000;

const outbound = openOutbound({ allowInsecure: true, own: [] }, async () => [
  { address: "127.0.0.1", family: 4 },
]);
const exchange = await outbound.post({
  url: process.argv[2] ?? "",
  headers: {},
  body: "{}",
  timeoutMs: TIMEOUT_MS,
  signal: new AbortController().signal,
});
console.log(
  exchange.kind === "answered"
    ? `${exchange.status} ${exchange.bodyEnd}`
    : exchange.kind === "faulted"
      ? exchange.message
      : exchange.kind,
);
process.exit(0);
