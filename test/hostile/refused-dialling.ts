import net from "node:net";
import { type Outbound, openOutbound } from "../../services/delivery/outbound.ts";
import { ownAddressOf } from "../../shared/domain/target.ts";
import { answerOf, startRawServer } from "../runtime-contract/raw-server.ts";
import {
  OWN_URL,
  PUBLIC_FOUR,
  PUBLIC_SIX,
  REFUSED_HOSTS,
  REFUSED_URLS,
  SPECIAL_ADDRESSES,
} from "./refused-addresses.ts";

/**
 * A program that dials every forbidden address and URL, beside canaries on every address of this machine, and prints
 * the outcome. In a network of its own, the special addresses are on the loopback interface and have canaries too. The
 * argument is the canaries' port, or 0 on a shared network.
 */

export interface Dialling {
  /** The number of connections that reached a canary, by its address. */
  heard: Record<string, number>;
  /** The URLs that received a request although it should have been refused. */
  notRefused: string[];
  dialled: number;
  /** The number of lookups of the rebinding name, and the outcome of its two requests. */
  rebinding: { lookups: number; messages: string[] };
  /** The status of a host that redirects to the metadata service, and the connections that followed. */
  redirect: { status: string; heard: Record<string, number> };
  /** The connections of allowed requests, which show that canaries receive them. */
  control: Record<string, number>;
}

/** Every request is refused, closed or answered at once. */
const TIMEOUT_MS = 20_000;

let port = Number(process.argv[2]);
/** On a shared network the public addresses belong to others and are left alone. */
const isAlone = port !== 0;
let heard: Record<string, number> = {};
for (const host of ["0.0.0.0", "::"]) {
  const server = net.createServer((socket) => {
    const address = (socket.localAddress ?? "").replace("::ffff:", "");
    heard[address] = (heard[address] ?? 0) + 1;
    socket.destroy();
  });
  await new Promise<void>((resolve) => server.listen({ port, host, ipv6Only: host === "::" }, resolve));
  port = (server.address() as net.AddressInfo).port;
}

const addresses = new Map<string, string[]>();
let lookups = 0;
const resolve = async (hostname: string) => {
  lookups++;
  const answers = addresses.get(hostname) ?? [isAlone ? PUBLIC_FOUR : "127.0.0.1"];
  return answers.map((address) => ({ address, family: net.isIPv6(address) ? (6 as const) : (4 as const) }));
};
const rules = { allowInsecure: false, own: [ownAddressOf(OWN_URL)] };
const outbound = openOutbound(rules, resolve);
const insecure = openOutbound({ allowInsecure: true, own: [] });
const notRefused: string[] = [];
let dialled = 0;

for (const host of REFUSED_HOSTS) await dial(`https://${host}:${port}/`);
// Some of these URLs name a public host once they are parsed; they must lead only there.
for (const url of REFUSED_URLS) await post(outbound, url);
for (const [index, address] of SPECIAL_ADDRESSES.entries()) {
  const publicOne = net.isIPv6(address) ? PUBLIC_SIX : PUBLIC_FOUR;
  for (const [place, answers] of [[address], [publicOne, address], [address, publicOne]].entries()) {
    const name = `answer-${index}-${place}.example`;
    addresses.set(name, answers);
    await dial(`https://${name}:${port}/`, answers.join(" and "));
  }
}
const whileRefusing = heard;

heard = {};
lookups = 0;
const messages: string[] = [];
for (const answer of isAlone ? [PUBLIC_FOUR, "127.0.0.1"] : []) {
  // The name changes its address right after the lookup, as an attacker would change it between check and dialling.
  addresses.set("rebinding.example", [answer]);
  const posted = post(outbound, `https://rebinding.example:${port}/`);
  queueMicrotask(() => addresses.set("rebinding.example", ["127.0.0.1"]));
  messages.push(await posted);
}
const rebinding = { lookups, messages };
heard = {};
const metadata = `http://169.254.169.254:${port}/latest/meta-data/`;
const redirecting = await startRawServer((socket) =>
  socket.write(answerOf("302 Found", { location: metadata })),
);
const redirect = { status: await post(insecure, redirecting.url), heard };

heard = {};
if (isAlone) {
  for (const address of ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[fd00::1]"]) {
    await post(insecure, `http://${address}:${port}/`);
  }
  await post(outbound, `https://${PUBLIC_FOUR}:${port}/`);
  await post(outbound, `https://[${PUBLIC_SIX}]:${port}/`);
}

const result: Dialling = { heard: whileRefusing, notRefused, dialled, rebinding, redirect, control: heard };
console.log(JSON.stringify(result));
process.exit(0);

async function dial(url: string, what = url): Promise<void> {
  dialled++;
  const message = await post(outbound, url);
  if (!/may not be dialled|could not be resolved \(ENOTFOUND\)|cannot be parsed|Invalid URL/.test(message))
    notRefused.push(`${what}: ${message}`);
}

async function post(by: Outbound, url: string): Promise<string> {
  const signal = new AbortController().signal;
  const exchange = await by.post({ url, headers: {}, body: "{}", timeoutMs: TIMEOUT_MS, signal });
  if (exchange.kind === "answered") return String(exchange.status);
  return exchange.kind === "faulted" ? exchange.message : exchange.kind;
}
