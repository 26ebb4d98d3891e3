import ipaddr from "ipaddr.js";
import { invalidRequest } from "./errors.ts";
import { hasMoreCharacters } from "./name.ts";

/**
 * Where the service may send requests. A URL is checked as it is written when a client gives it, without resolving its host.
 * Every address is checked again when it is dialled, because names change.
 */

export const TARGET_URL_CHARACTERS_MAX = 2_048;

/** A host and port on which the service itself answers. */
export interface OwnAddress {
  /** As in `URL.hostname`: lower case, IPv6 in brackets. */
  hostname: string;
  port: number;
}

export interface TargetRules {
  /** Allows http and private addresses, for development and tests. */
  allowInsecure: boolean;
  /** PUBLIC_URL, and the address on which the gateway listens. */
  own: readonly OwnAddress[];
}

/** Throws invalid_request if the service may not send to this URL; `param` is the field that holds it. */
export function checkTarget(text: string, param: string, rules: TargetRules): void {
  const fault = findTargetFault(text, rules);
  if (fault !== null) throw invalidRequest(`${param} ${fault}.`, param);
}

/** The fault of a URL as it is written, worded as the end of a sentence about it; null if there is none. */
export function findTargetFault(text: string, rules: TargetRules): string | null {
  if (hasMoreCharacters(text, TARGET_URL_CHARACTERS_MAX)) {
    return `must have at most ${TARGET_URL_CHARACTERS_MAX} characters`;
  }
  const authority = AUTHORITY_PATTERN.exec(text)?.[1];
  const url = URL.parse(text);
  if (authority === undefined || url === null) {
    return `must be an absolute ${rules.allowInsecure ? "http or https" : "https"} URL, such as https://example.com/path`;
  }
  // The URL parser drops or rewrites these characters, so two readers could disagree on where the URL leads.
  if (UNSAFE_CHARACTERS.test(text) || !text.isWellFormed()) {
    return "must not contain blanks, backslashes, control characters or broken Unicode";
  }
  if (authority.includes("@")) return "must not contain credentials";
  return findOriginFault({ protocol: url.protocol, hostname: url.hostname, port: portOf(url) }, rules);
}

/** The origin of a URL, before its host is resolved. */
export interface TargetOrigin {
  /** As in `URL.protocol`. */
  protocol: string;
  /** As in `URL.hostname`: IPv4 in any spelling has become four decimal parts, names are ASCII, IPv6 is in brackets. */
  hostname: string;
  port: number;
}

/** The fault of an origin, worded as the end of a sentence about the URL; null if there is none. */
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
  // Hosts have addresses in 2000::/3 only, while ipaddr.js also calls others unicast, such as ::127.0.0.1.
  return parsed.zoneId === undefined && parsed.range() === "unicast" && parsed.match(GLOBAL_UNICAST);
}

/** The check when connecting, on the address that is dialled. */
export function mayDial(address: string, port: number, rules: TargetRules): boolean {
  if (!rules.allowInsecure) return isPublicAddress(address);
  const hostname = address.includes(":") ? `[${address}]` : address;
  return !rules.own.some((own) => own.port === port && isSameHost(own.hostname, hostname));
}

/** The host of an accepted URL without its port, in one spelling. */
export function hostOfTarget(url: string): string {
  return withoutFinalDot(URL.parse(url)?.hostname ?? "");
}

/** The host and port of a URL of this service. */
export function ownAddressOf(url: string): OwnAddress {
  const parsed = new URL(url);
  return { hostname: withoutFinalDot(parsed.hostname), port: portOf(parsed) };
}

// Only the usual form. The URL parser also accepts https:host and https:\\host.
const AUTHORITY_PATTERN = /^https?:\/\/([^/?#\\]+)/i;
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for.
const UNSAFE_CHARACTERS = /[\u0000-\u0020\u007f-\u00a0\\]/;
/** The address at which Azure's hosts serve their virtual machines. It looks public but is not on the internet. */
const CLOUD_HOSTS = ["168.63.129.16"];
const GLOBAL_UNICAST = ipaddr.IPv6.parseCIDR("2000::/3");
/** Suffixes of names that only private networks know, such as those of a cluster, a home or an office, and of address look-ups. */
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

/** Both as in `URL.hostname`. All names of this machine are one host, because a gateway on 0.0.0.0 answers on all of them. */
function isSameHost(own: string, target: string): boolean {
  // Most targets are ordinary names, which are told from this machine's much sooner than addresses are read.
  return own === target || (isThisMachine(target) && isThisMachine(own));
}

function isThisMachine(hostname: string): boolean {
  if (hostname === "localhost" || hostname.endsWith(".localhost")) return true;
  if (!ADDRESS_START.test(hostname)) return false;
  const address = withoutBrackets(hostname);
  return ipaddr.isValid(address) && LOCAL_RANGES.includes(ipaddr.process(address).range());
}

/** The port of a URL, by its protocol if it names none. */
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
