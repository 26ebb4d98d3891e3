import { openOutbound } from "../../services/delivery/outbound.ts";

/**
 * A program that freezes itself while it connects to a port of this machine, as its parent says, and prints what became
 * of the request once it is woken.
 */

const TICKS_UNTIL_DIALLED = 4;

const [port] = process.argv.slice(2);
const outbound = openOutbound({ allowInsecure: true, own: [] }, async () => {
  let ticksLeft = TICKS_UNTIL_DIALLED;
  const tick = () => (ticksLeft-- > 0 ? queueMicrotask(tick) : process.nextTick(freeze));
  tick();
  return [{ address: "127.0.0.1", family: 4 }];
});
// By then the connection has been asked for, and nothing has been heard of it.
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
