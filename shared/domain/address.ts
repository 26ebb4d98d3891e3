import ipaddr from "ipaddr.js";

/** The kinds of IP addresses, and the networks that an operator opens to targets (domain/target.ts). */

type Address = ipaddr.IPv4 | ipaddr.IPv6;

/** A network, such as 10.0.0.0/8. */
export interface Network {
  start: Address;
  prefix: number;
}

/** True for an address that any host on the internet could have. `address` is IPv4 or IPv6 text, without brackets. */
export function isPublicAddress(address: string): boolean {
  if (ipaddr.IPv4.isValidFourPartDecimal(address)) {
    return ipaddr.IPv4.parse(address).range() === "unicast" && !CLOUD_HOSTS.includes(address);
  }
  if (!ipaddr.IPv6.isValid(address)) return false;
  const parsed = ipaddr.IPv6.parse(address);
  // Hosts have addresses in 2000::/3 only, while ipaddr.js also calls others unicast, such as ::127.0.0.1.
  return parsed.zoneId === undefined && parsed.range() === "unicast" && parsed.match(GLOBAL_UNICAST);
}

/** True for a private or a loopback address at which no cloud serves its metadata. */
export function isPrivateAddress(text: string): boolean {
  const address = readAddress(text);
  return (
    address !== null && PRIVATE_RANGES.includes(address.range()) && leastPrefixOf(address) === OF_ANY_NETWORK
  );
}

/**
 * True if one of the networks opens the address. Link-local addresses, and those of a cloud's metadata, are opened only by
 * a network of their own. Otherwise a network that holds all addresses would open them by accident.
 */
export function isInNetworks(text: string, networks: readonly Network[]): boolean {
  const address = readAddress(text);
  if (address === null) return false;
  const leastPrefix = leastPrefixOf(address);
  return networks.some(
    ({ start, prefix }) =>
      start.kind() === address.kind() && address.match(start, prefix) && prefix >= leastPrefix,
  );
}

/**
 * A network as CIDR. Null for anything else, such as a network with bits behind its prefix, whose meaning is unclear, and
 * a network of IPv4-mapped addresses, which are judged as IPv4.
 */
export function parseNetwork(text: string): Network | null {
  const isFour = ipaddr.IPv4.isValidCIDRFourPartDecimal(text);
  if (!isFour && (!ipaddr.IPv6.isValidCIDR(text) || text.includes("%"))) return null;
  if (!PREFIX_END.test(text)) return null;
  const [start, prefix] = ipaddr.parseCIDR(text);
  if (start.kind() === "ipv6" && (start as ipaddr.IPv6).isIPv4MappedAddress()) return null;
  const first = isFour ? ipaddr.IPv4.networkAddressFromCIDR(text) : ipaddr.IPv6.networkAddressFromCIDR(text);
  return first.toString() === start.toString() ? { start, prefix } : null;
}

/** True for an address as in `URL.hostname`: four decimal parts, or IPv6 in brackets. */
export function isAddress(hostname: string): boolean {
  return hostname.startsWith("[") || ipaddr.IPv4.isValidFourPartDecimal(hostname);
}

/** True for a name or an address as in `URL.hostname` that every machine has for itself. */
export function isThisMachine(hostname: string): boolean {
  if (hostname === "localhost" || hostname.endsWith(".localhost")) return true;
  if (!ADDRESS_START.test(hostname)) return false;
  const address = hostname.replace(/^\[|\]$/g, "");
  return ipaddr.isValid(address) && LOCAL_RANGES.includes(ipaddr.process(address).range());
}

/** A host as in `URL.hostname`, with an IPv4-mapped address as IPv4. */
export function unmapped(hostname: string): string {
  if (!MAPPED_START.test(hostname)) return hostname;
  const address = hostname.slice(1, -1);
  return ipaddr.isValid(address) ? ipaddr.process(address).toString() : hostname;
}

/** The address at which Azure's hosts serve their virtual machines. It looks public but is not on the internet. */
const CLOUD_HOSTS = ["168.63.129.16"];
const GLOBAL_UNICAST = ipaddr.IPv6.parseCIDR("2000::/3");
const LOCAL_RANGES = ["loopback", "unspecified"];
const PRIVATE_RANGES = ["loopback", "private", "uniqueLocal"];
const ADDRESS_START = /^[[0-9]/;
/** ipaddr.js also accepts a leading zero, as in /08. */
const PREFIX_END = /\/(0|[1-9][0-9]{0,2})$/;
/** ipaddr.js takes this deprecated form (RFC 4291, 2.5.5.1) for an IPv4-mapped address, which it is not. */
const COMPATIBLE = /^::[0-9]+\.[0-9.]+$/;
const MAPPED_START = /^\[::ffff:/i;

const OF_ANY_NETWORK = 0;
const OF_NO_NETWORK = Number.POSITIVE_INFINITY;
/**
 * The guarded networks, each with the shortest prefix of a network that opens it: link-local, and the metadata of AWS,
 * Alibaba, Azure, Oracle, Google.
 */
const GUARDED: readonly [cidr: [Address, number], leastPrefix: number][] = (
  [
    ["169.254.0.0/16", 16],
    ["fe80::/10", 10],
    ["100.100.100.200/32", 16],
    ["168.63.129.16/32", 16],
    ["192.0.0.192/32", 16],
    ["fd00:ec2::254/128", 64],
    ["fd20:ce::254/128", 64],
  ] as const
).map(([cidr, leastPrefix]) => [ipaddr.parseCIDR(cidr), leastPrefix]);
/** The networks whose addresses stand for IPv4 addresses, and the byte at which those begin (RFC 6052, 7915, 3056, 4291). */
const TRANSLATED: readonly [cidr: [ipaddr.IPv6, number], firstByte: number][] = (
  [
    ["64:ff9b::/96", 12],
    ["64:ff9b:1::/48", 12],
    ["::ffff:0:0:0/96", 12],
    ["2002::/16", 2],
    ["::/96", 12],
  ] as const
).map(([cidr, firstByte]) => [ipaddr.IPv6.parseCIDR(cidr), firstByte]);

/** The shortest prefix of a network that opens the address. */
function leastPrefixOf(address: Address): number {
  const guard = GUARDED.find(
    ([[start, prefix]]) => start.kind() === address.kind() && address.match(start, prefix),
  );
  if (guard !== undefined) return guard[1];
  if (address.kind() === "ipv4") return OF_ANY_NETWORK;
  const six = address as ipaddr.IPv6;
  const standsForGuarded = TRANSLATED.some(([[start, prefix], firstByte]) => {
    if (!six.match(start, prefix)) return false;
    const four = new ipaddr.IPv4(six.toByteArray().slice(firstByte, firstByte + 4));
    return leastPrefixOf(four) !== OF_ANY_NETWORK;
  });
  // The guarded network is one of IPv4, which cannot open an IPv6 address, so no network opens this one.
  return standsForGuarded ? OF_NO_NETWORK : OF_ANY_NETWORK;
}

/** An address without brackets. An IPv4-mapped address is judged as IPv4. Null for one with an interface, or other text. */
function readAddress(text: string): Address | null {
  if (ipaddr.IPv4.isValidFourPartDecimal(text)) return ipaddr.IPv4.parse(text);
  if (!ipaddr.IPv6.isValid(text) || text.includes("%") || COMPATIBLE.test(text)) return null;
  return ipaddr.process(text);
}
