import ipaddr from "ipaddr.js";
import { invalidRequest } from "./errors.ts";
import { hasMoreCharacters } from "./name.ts";

/**
 * Where the service may send requests. A URL is judged as it is written when it is given to us, without
 * resolving anything, and every address is judged again at the moment it is dialled, since names change.
 */

export const TARGET_URL_CHARACTERS_MAX = 2_048;

/** A host and port on which the service itself answers. */
export interface OwnAddress {
  /** As in `URL.hostname`: lower case, IPv6 in brackets. */
  hostname: string;
  port: number;
}

export interface TargetRules {
  /** For development and tests: http and private addresses pass. */
  allowInsecure: boolean;
  /** PUBLIC_URL, and where the gateway listens. */
  own: readonly OwnAddress[];
}

/** Throws invalid_request if the service may not send to this URL; `param` is the field that holds it. */
export function checkTarget(text: string, param: string, rules: TargetRules): void {
  const fault = findTargetFault(text, rules);
  if (fault !== null) throw invalidRequest(`${param} ${fault}.`, param);
}

/** What is wrong with a URL as written, as the end of a sentence about it; null if nothing is. */
export function findTargetFault(text: string, rules: TargetRules): string | null {
  if (hasMoreCharacters(text, TARGET_URL_CHARACTERS_MAX)) {
    return `must have at most ${TARGET_URL_CHARACTERS_MAX} characters`;
  }
  const authority = AUTHORITY_PATTERN.exec(text)?.[1];
  const url = URL.parse(text);
  if (authority === undefined || url === null) {
    return `must be an absolute ${rules.allowInsecure ? "http or https" : "https"} URL, such as https://example.com/path`;
  }
  // The URL parser drops or rewrites these, so that two readers of the text could disagree on where it leads.
  if (UNSAFE_CHARACTERS.test(text) || !text.isWellFormed()) {
    return "must not contain blanks, backslashes, control characters or broken Unicode";
  }
  if (authority.includes("@")) return "must not contain credentials";
  return findOriginFault({ protocol: url.protocol, hostname: url.hostname, port: portOf(url) }, rules);
}

/** Where a URL leads, before anything is resolved. */
export interface TargetOrigin {
  /** As in `URL.protocol`. */
  protocol: string;
  /** As in `URL.hostname`: IPv4 in any spelling has become four decimal parts, names are ASCII, IPv6 is in brackets. */
  hostname: string;
  port: number;
}

/** What is wrong with it, as the end of a sentence about the URL; null if nothing is. */
export function findOriginFault(
  { protocol, hostname, port }: TargetOrigin,
  rules: TargetRules,
): string | null {
  if (protocol !== "https:" && !rules.allowInsecure) return "must be an https URL";
  if (port === 0) return "must not use port 0";
  return findHostFault(hostname, port, rules);
}

/** True for an address that any host on the internet could have. `address` is IPv4 or IPv6 text, without brackets. */
export function isPublicAddress(address: string): boolean {
  if (ipaddr.IPv4.isValidFourPartDecimal(address)) {
    return ipaddr.IPv4.parse(address).range() === "unicast" && !CLOUD_HOSTS.includes(address);
  }
  if (!ipaddr.IPv6.isValid(address)) return false;
  const parsed = ipaddr.IPv6.parse(address);
  // Outside 2000::/3 nothing is assigned to hosts. ipaddr.js calls some of that unicast, such as ::127.0.0.1.
  return parsed.zoneId === undefined && parsed.range() === "unicast" && parsed.match(GLOBAL_UNICAST);
}

/** The judgement at the moment of connecting, on the very address that is dialled. */
export function mayDial(address: string, port: number, rules: TargetRules): boolean {
  if (!rules.allowInsecure) return isPublicAddress(address);
  const hostname = address.includes(":") ? `[${address}]` : address;
  return !rules.own.some((own) => own.port === port && isSameHost(own.hostname, hostname));
}

/** The host of an accepted URL, the same for every spelling of it, whatever the port. */
export function hostOfTarget(url: string): string {
  return withoutFinalDot(URL.parse(url)?.hostname ?? "");
}

/** The address that a URL of our own stands for. */
export function ownAddressOf(url: string): OwnAddress {
  const parsed = new URL(url);
  return { hostname: withoutFinalDot(parsed.hostname), port: portOf(parsed) };
}

// Not what the URL parser takes (https:host, https:\\host), but what people write.
const AUTHORITY_PATTERN = /^https?:\/\/([^/?#\\]+)/i;
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for.
const UNSAFE_CHARACTERS = /[\u0000-\u0020\u007f-\u00a0\\]/;
/** Where Azure's own host answers the virtual machines on it: an address of the public kind that is not on the internet. */
const CLOUD_HOSTS = ["168.63.129.16"];
const GLOBAL_UNICAST = ipaddr.IPv6.parseCIDR("2000::/3");
/** Names that only a network of its own knows: of the cluster, of a house, of an office, and of addresses themselves. */
const PRIVATE_SUFFIXES = [
  ...[".localhost", ".local", ".internal", ".onion", ".svc", ".arpa"],
  ...[".lan", ".corp", ".home", ".intranet", ".test"],
];
const ADDRESS_START = /^[[0-9]/;
const LOCAL_RANGES = ["loopback", "unspecified"];
const HOSTNAME_LENGTH_MAX = 253;
const LABEL_LENGTH_MAX = 63;

function findHostFault(hostname: string, port: number, rules: TargetRules): string | null {
  const host = withoutFinalDot(hostname);
  if (
    rules.own.some((own) => (own.port === port || !rules.allowInsecure) && isSameHost(own.hostname, host))
  ) {
    return "must not lead back to this service";
  }
  if (host.startsWith("[") || ipaddr.IPv4.isValidFourPartDecimal(host)) {
    const isAllowed = rules.allowInsecure || isPublicAddress(withoutBrackets(host));
    return isAllowed ? null : "must lead to a public address";
  }
  const labels = host.split(".");
  if (
    host.length > HOSTNAME_LENGTH_MAX ||
    labels.some((label) => label.length === 0 || label.length > LABEL_LENGTH_MAX)
  ) {
    return "must have a valid host name";
  }
  if (rules.allowInsecure) return null;
  if (labels.length === 1) return "must have a full host name, such as example.com";
  return PRIVATE_SUFFIXES.some((suffix) => host.endsWith(suffix)) ? "must have a public host name" : null;
}

/** Both as in `URL.hostname`. Every spelling of this machine is one host: a gateway on 0.0.0.0 answers on all. */
function isSameHost(a: string, b: string): boolean {
  return a === b || (isThisMachine(a) && isThisMachine(b));
}

function isThisMachine(hostname: string): boolean {
  if (hostname === "localhost" || hostname.endsWith(".localhost")) return true;
  if (!ADDRESS_START.test(hostname)) return false;
  const address = withoutBrackets(hostname);
  return ipaddr.isValid(address) && LOCAL_RANGES.includes(ipaddr.process(address).range());
}

/** The port that a URL leads to, given or not. */
export function portOf(url: URL): number {
  if (url.port !== "") return Number(url.port);
  return url.protocol === "https:" ? 443 : 80;
}

function withoutFinalDot(hostname: string): string {
  return hostname.endsWith(".") ? hostname.slice(0, -1) : hostname;
}

function withoutBrackets(hostname: string): string {
  return hostname.startsWith("[") ? hostname.slice(1, -1) : hostname;
}
