import { openOutbound } from "../../services/delivery/outbound.ts";

/**
 * A program that freezes itself while it connects to a local port, which its parent names. It prints the outcome of the
 * request once it is woken.
 */

const TICKS_UNTIL_DIALLED = 4;

const [port] = process.argv.slice(2);
const outbound = openOutbound({ allowInsecure: true, own: [] }, async () => {
  let ticksLeft = TICKS_UNTIL_DIALLED;
  const tick = () => (ticksLeft-- > 0 ? queueMicrotask(tick) : process.nextTick(freeze));
  tick();
  return [{ address: "127.0.0.1", family: 4 }];
});
// By then the connection has been asked for, and no answer has come.
const freeze = () => process.nextTick(() => process.kill(process.pid, "SIGSTOP"));
const exchange = await outbound.post({
  url: `http://name.example:${port}/`,
  headers: {},
  body: "{}",
  timeoutMs: 1_000,
  signal: new AbortController().signal,
});
console.log(exchange.kind);
process.exit(0);
