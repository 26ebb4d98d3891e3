import {
  isAddress,
  isInNetworks,
  isPrivateAddress,
  isPublicAddress,
  isThisMachine,
  type Network,
  unmapped,
} from "./address.ts";
import { invalidRequest } from "./errors.ts";
import { hasMoreCharacters } from "./name.ts";

/**
 * The URLs to which the service may send requests. When a client gives a URL, it is checked as it is written, without
 * resolving its host. Every address is checked again when it is dialled, because names change.
 */

export const TARGET_URL_CHARACTERS_MAX = 2_048;

/** A host and port on which the service itself answers. */
export interface OwnAddress {
  /** As in `URL.hostname`: lower case, IPv6 in brackets. */
  hostname: string;
  port: number;
  /** True where other services may stand on the host's other ports. */
  isOnePort?: boolean;
}

/** The targets that an operator opens besides the internet, http included. All others stay refused. */
export interface OpenedTargets {
  networks: readonly Network[];
  /** Hosts as `parseOpenedHost` answers them. */
  hosts: readonly string[];
}

export interface TargetRules {
  /** Allows http and private addresses, for development and tests. */
  allowInsecure: boolean;
  /** No target is opened if this is left out. */
  opened?: OpenedTargets;
  /** PUBLIC_URL, the address on which the gateway listens, and its port on this machine. */
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
  const host = withoutFinalDot(hostname);
  const isOpen = rules.allowInsecure || isOpened(host, rules.opened);
  if (protocol !== "https:" && !isOpen) return "must be an https URL";
  if (port === 0) return "must not use port 0";
  return findHostFault(host, port, rules, isOpen);
}

/** Checks the address that is dialled, when connecting. `hostname` is the target's, without brackets. */
export function mayDial(
  address: string,
  { hostname, port }: Pick<TargetOrigin, "hostname" | "port">,
  rules: TargetRules,
): boolean {
  if (!rules.allowInsecure) {
    if (isPublicAddress(address)) return true;
    if (!isOpenedAddress(address, withoutFinalDot(hostname), rules.opened)) return false;
  }
  return !isOwn(address.includes(":") ? `[${address}]` : address, port, rules, true);
}

/** A name, or a suffix that begins with a dot, in the spelling of `URL.hostname`. Null for anything else, addresses included. */
export function parseOpenedHost(text: string): string | null {
  const host = text.toLowerCase();
  const labels = (host.startsWith(".") ? host.slice(1) : host).split(".");
  const isName = labels.every((label) => LABEL_PATTERN.test(label)) && host.length <= HOSTNAME_LENGTH_MAX;
  // The URL parser takes a host that ends in a number for an IPv4 address.
  return isName && !NUMBER_PATTERN.test(labels.at(-1) ?? "") ? host : null;
}

/** The host of an accepted URL without its port, in one spelling. */
export function hostOfTarget(url: string): string {
  return withoutFinalDot(URL.parse(url)?.hostname ?? "");
}

/** Whether a host, in the spelling of `hostOfTarget`, can be that of a target where everything is allowed. */
export function isHostOfTargets(host: string): boolean {
  return findHostFault(host, 443, { allowInsecure: true, own: [] }, true) === null;
}

/** The host and port of a URL of this service. */
export function ownAddressOf(url: string): OwnAddress {
  const parsed = new URL(url);
  return { hostname: unmapped(withoutFinalDot(parsed.hostname)), port: portOf(parsed) };
}

/** An address or a name on which this service listens, as the settings have it. */
export function listenAddressOf(host: string, port: number): OwnAddress {
  // A URL has no zone, as in fe80::1%eth0.
  const address = host.replace(/%.*/, "");
  const { hostname } = ownAddressOf(`http://${address.includes(":") ? `[${address}]` : address}/`);
  return { hostname, port, isOnePort: true };
}

// Only the usual form. The URL parser also accepts https:host and https:\\host.
const AUTHORITY_PATTERN = /^https?:\/\/([^/?#\\]+)/i;
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for.
const UNSAFE_CHARACTERS = /[\u0000-\u0020\u007f-\u00a0\\]/;
/** Suffixes of names that only private networks know, such as those of a cluster, a home or an office, and of address look-ups. */
const PRIVATE_SUFFIXES = [
  ...[".localhost", ".local", ".internal", ".onion", ".svc", ".arpa"],
  ...[".lan", ".corp", ".home", ".intranet", ".test"],
];
/** Underscores are allowed, because names of hosts in private networks have them now and then. */
const LABEL_PATTERN = /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/;
const NUMBER_PATTERN = /^([0-9]+|0x[0-9a-f]*)$/;
const HOSTNAME_LENGTH_MAX = 253;
const LABEL_LENGTH_MAX = 63;

function findHostFault(host: string, port: number, rules: TargetRules, isOpen: boolean): string | null {
  if (isOwn(host, port, rules, isOpen)) return "must not lead back to this service";
  if (isAddress(host)) {
    return isOpen || isPublicAddress(withoutBrackets(host)) ? null : "must lead to a public address";
  }
  const labels = host.split(".");
  if (
    host.length > HOSTNAME_LENGTH_MAX ||
    labels.some((label) => label.length === 0 || label.length > LABEL_LENGTH_MAX)
  ) {
    return "must have a valid host name";
  }
  if (isOpen) return null;
  if (labels.length === 1) return "must have a full host name, such as example.com";
  return PRIVATE_SUFFIXES.some((suffix) => host.endsWith(suffix)) ? "must have a public host name" : null;
}

/** True if the operator has opened the host as it is written: a listed name, or an address within a network. */
function isOpened(host: string, opened: OpenedTargets | undefined): boolean {
  if (opened === undefined) return false;
  if (isAddress(host)) return isInNetworks(withoutBrackets(host), opened.networks);
  return opened.hosts.some((listed) => (listed.startsWith(".") ? host.endsWith(listed) : host === listed));
}

/** True if the operator has opened an address that is not public, to which the host has led. */
function isOpenedAddress(address: string, host: string, opened: OpenedTargets | undefined): boolean {
  if (opened === undefined) return false;
  if (isInNetworks(address, opened.networks)) return true;
  return isPrivateAddress(address) && !isAddress(host) && isOpened(host, opened);
}

/**
 * True for a host of the service itself, on any port. Only the service's own port counts at the address on which it listens,
 * where insecure targets are allowed, and on this machine if the operator has opened it: other services may stand there.
 */
function isOwn(host: string, port: number, rules: TargetRules, isOpen: boolean): boolean {
  return rules.own.some((own) => {
    const isOnePort = own.isOnePort || (isOpen && (rules.allowInsecure || isThisMachine(own.hostname)));
    return (own.port === port || !isOnePort) && isSameHost(own.hostname, host);
  });
}

/** Hosts are as in `URL.hostname`. All names of this machine are one host, because a gateway on 0.0.0.0 answers on all of them. */
function isSameHost(own: string, target: string): boolean {
  // Most targets are ordinary names. A name is told from this machine's names without reading an address.
  return own === unmapped(target) || (isThisMachine(target) && isThisMachine(own));
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
