import { randomBytes } from "node:crypto";
import { isIP, isIPv4 } from "node:net";
import { type Network, parseNetwork } from "../domain/address.ts";
import { keyEnvironment } from "../domain/key.ts";
import { type Environment, isRegion, REGIONS, type Region } from "../domain/scope.ts";
import { parseOpenedHost } from "../domain/target.ts";
import type { LogFormat, LogLevel } from "./log.ts";
import { parseSecretsKey, parseSecretsKeys } from "./seal/secrets-key.ts";
import type { TraceSettings } from "./traces/traces.ts";

export type Service = "gateway" | "worker" | "delivery" | "standalone" | "admin";

/** All settings. A setting that service S requires is not null in Config<S>. */
export interface Config<S extends Service = Service> {
  host: string;
  /** 0 lets the system choose. */
  port: number;
  /** 0 lets the system choose. */
  opsPort: number;
  /** Null selects the embedded Postgres of the data directory. */
  databaseUrl: S extends Node ? string : string | null;
  /** Null selects the bus within the process. */
  natsUrl: S extends Node ? string : string | null;
  /** The regions that a worker or delivery node serves. */
  regions: readonly Region[];
  shardsPerRegion: number;
  nodeName: string;
  /** False for a random name, which no earlier process had. So the node has no earlier process to prove dead. */
  nodeNameIsFixed: boolean;
  publicUrl: string | null;
  logLevel: LogLevel;
  /** Null selects human lines on a terminal, and JSON elsewhere. */
  logFormat: LogFormat | null;
  dataDir: string;
  /** The keys that the standalone's first project gets; null for a new one. */
  firstKeys: Readonly<Record<Environment, string | null>>;
  /** How the standalone's banner calls the operators' command line; null in a checkout. */
  adminCommand: string | null;
  /** 32 bytes. Null selects the key of the data directory. */
  secretsKey: S extends "gateway" | "delivery" ? Uint8Array : Uint8Array | null;
  /** Former keys of 32 bytes each, which open old secrets and seal no new ones. */
  secretsKeyFallbacks: readonly Uint8Array[];
  allowInsecureTargets: boolean;
  /** Private networks that targets may lie in. */
  allowedTargetNetworks: readonly Network[];
  /** Names of hosts in private networks, and suffixes of names, which begin with a dot. */
  allowedTargetHosts: readonly string[];
  attemptTimeoutMs: number;
  webhookTimeoutMs: number;
  /** Multiplies every wait of the webhook retries. */
  webhookRetryScale: number;
  leaseTtlMs: number;
  drainTimeoutMs: number;
  traces: TraceSettings;
}

/** A service that runs in a process of its own and shares a database and NATS with others. */
type Node = "gateway" | "worker" | "delivery";

/** Names every wrong setting in a line of its own, without the values of settings that may hold secrets. */
export class ConfigError extends Error {
  readonly lines: readonly string[];

  constructor(lines: readonly string[]) {
    super(`wrong settings:\n${lines.map((line) => `  ${line}`).join("\n")}`);
    this.name = "ConfigError";
    this.lines = lines;
  }
}

export const DATA_DIR_DEFAULT = "./.data";
const LOG_LEVELS: readonly LogLevel[] = ["debug", "info", "warn", "error", "silent"];
const LOG_FORMATS: readonly LogFormat[] = ["json", "human"];
const SHARDS_PER_REGION_MAX = 4_096;
const DURATION_MS_MAX = 86_400_000;
/** With shorter leases a node would mostly be busy renewing them. */
const LEASE_TTL_MS_MIN = 100;
/** The recorded part of the traces that no client began. */
const TRACES_RATIO = 0.01;
/** A wrong value is shown up to this length. */
const SHOWN_CHARACTERS_MAX = 40;

/**
 * The settings of a service from its environment variables. An empty variable counts as unset, because deployment tools pass
 * a missing value on like that. Throws ConfigError.
 */
export function readConfig<S extends Service>(
  environment: Readonly<Record<string, string | undefined>>,
  service: S,
): Config<S> {
  const lines: string[] = [];

  function read<T>(name: string, rule: string, parse: (text: string) => T | null, show = true): T | null {
    const text = environment[name]?.trim() ?? "";
    if (text === "") return null;
    const value = parse(text);
    if (value === null) {
      lines.push(
        `${name} must be ${rule}${show ? `, not ${JSON.stringify(text.slice(0, SHOWN_CHARACTERS_MAX))}` : ""}`,
      );
    }
    return value;
  }
  const readSecretly = <T>(name: string, rule: string, parse: (text: string) => T | null) =>
    read(name, rule, parse, false);
  const readInteger = (name: string, least: number, most: number) =>
    read(name, `a whole number from ${least} to ${most}`, (text) => parseInteger(text, least, most));

  /** Reads a comma list. The error names each wrong part. */
  function readList<T>(name: string, rule: string, parse: (text: string) => T | null): T[] {
    const parts = (environment[name]?.trim() ?? "") === "" ? [] : (environment[name] ?? "").split(",");
    return parts.flatMap((part) => {
      const value = parse(part.trim());
      if (value !== null) return [value];
      lines.push(
        `${name} must be ${rule}, with commas between, not ${JSON.stringify(part.slice(0, SHOWN_CHARACTERS_MAX))}`,
      );
      return [];
    });
  }

  const isNode = service === "gateway" || service === "worker" || service === "delivery";
  const required = new Set(isNode ? ["DATABASE_URL", "NATS_URL"] : []);
  if (service === "gateway" || service === "delivery") required.add("SECRETS_KEY");
  for (const name of required) {
    if ((environment[name]?.trim() ?? "") === "") lines.push(`${name} is required`);
  }

  function readTraces(): TraceSettings {
    const endpoint = readSecretly(
      "OTEL_EXPORTER_OTLP_ENDPOINT",
      "an http or https URL without credentials or a query",
      parsePlainUrl,
    );
    const ratio = read("OTEL_TRACES_SAMPLER_ARG", "a number from 0 to 1", parseRatio) ?? TRACES_RATIO;
    return endpoint === null ? null : { endpoint, ratio };
  }

  const host =
    read("HOST", "an IP address or a host name", parseHost) ??
    (service === "standalone" ? "127.0.0.1" : "0.0.0.0");
  const nodeName = read("NODE_NAME", "1 to 253 letters, digits, dots, dashes and underscores", parseNodeName);
  const config: Config = {
    host,
    port: readInteger("PORT", 0, 65_535) ?? 8_080,
    opsPort: readInteger("OPS_PORT", 0, 65_535) ?? 9_090,
    databaseUrl: readSecretly(
      "DATABASE_URL",
      "a URL such as postgres://user@host/database",
      parseDatabaseUrl,
    ),
    natsUrl: readSecretly("NATS_URL", "URLs such as nats://host:4222, with commas between", parseNatsUrl),
    regions: read("REGIONS", `a comma list of ${REGIONS.join(", ")}`, parseRegions) ?? REGIONS,
    shardsPerRegion: readInteger("SHARDS_PER_REGION", 1, SHARDS_PER_REGION_MAX) ?? 64,
    nodeName: nodeName ?? `${service}-${randomBytes(6).toString("hex")}`,
    nodeNameIsFixed: nodeName !== null,
    publicUrl: readSecretly(
      "PUBLIC_URL",
      "an http or https URL without credentials or a query",
      parsePlainUrl,
    ),
    logLevel:
      read("LOG_LEVEL", `one of ${LOG_LEVELS.join(", ")}`, (text) => parseWord(text, LOG_LEVELS)) ?? "info",
    logFormat: read("LOG_FORMAT", LOG_FORMATS.join(" or "), (text) => parseWord(text, LOG_FORMATS)),
    dataDir: read("DATA_DIR", "a path", (text) => text) ?? DATA_DIR_DEFAULT,
    firstKeys: {
      development: readSecretly("DEVELOPMENT_KEY", "a whole key, svc_dev_...", keyOf("development")),
      production: readSecretly("PRODUCTION_KEY", "a whole key, svc_live_...", keyOf("production")),
    },
    adminCommand: read("ADMIN_COMMAND", "a command", (text) => text),
    secretsKey: readSecretly("SECRETS_KEY", "32 bytes in base64 or hex", parseSecretsKey),
    secretsKeyFallbacks:
      readSecretly(
        "SECRETS_KEY_FALLBACKS",
        "keys of 32 bytes in base64 or hex, with commas between",
        parseSecretsKeys,
      ) ?? [],
    allowInsecureTargets:
      read("ALLOW_INSECURE_TARGETS", "true or false", parseBoolean) ??
      (service === "standalone" && isLoopback(host)),
    allowedTargetNetworks: readList(
      "ALLOWED_TARGET_NETWORKS",
      "networks such as 10.0.0.0/8 or fd00::/8",
      parseNetwork,
    ),
    allowedTargetHosts: readList(
      "ALLOWED_TARGET_HOSTS",
      "names such as jobs.lan or suffixes such as .jobs.lan",
      parseOpenedHost,
    ),
    attemptTimeoutMs: readInteger("ATTEMPT_TIMEOUT_MS", 1, DURATION_MS_MAX) ?? 900_000,
    webhookTimeoutMs: readInteger("WEBHOOK_TIMEOUT_MS", 1, DURATION_MS_MAX) ?? 15_000,
    webhookRetryScale: read("WEBHOOK_RETRY_SCALE", "a number above 0, at most 1", parseScale) ?? 1,
    leaseTtlMs: readInteger("LEASE_TTL_MS", LEASE_TTL_MS_MIN, DURATION_MS_MAX) ?? 10_000,
    drainTimeoutMs: readInteger("DRAIN_TIMEOUT_MS", 0, DURATION_MS_MAX) ?? 30_000,
    traces: readTraces(),
  };
  const listensTwice = service === "gateway" || service === "standalone";
  if (listensTwice && config.port !== 0 && config.port === config.opsPort) {
    lines.push(`PORT and OPS_PORT must differ, not both be ${config.port}`);
  }
  if (lines.length > 0) throw new ConfigError(lines);
  // A required setting is not null here: if it were missing, `lines` would say so.
  return config as Config<S>;
}

/** `host` is the address or name to listen on. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || (isIPv4(host) && host.startsWith("127."));
}

const HOST_NAME = /^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,62})(\.[a-z0-9][a-z0-9-]{0,62})*$/i;
const NODE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$/;
const PLAIN_INTEGER = /^(0|[1-9][0-9]{0,8})$/;
const PLAIN_DECIMAL = /^[0-9]{1,3}(\.[0-9]{1,12})?$/;

const keyOf = (environment: Environment) => (text: string) =>
  keyEnvironment(text) === environment ? text : null;

function parseHost(text: string): string | null {
  // Digits and dots that are no address would be looked up as a name and not be found.
  const isName = HOST_NAME.test(text) && !/^[0-9.]+$/.test(text);
  return isIP(text) !== 0 || isName ? text : null;
}

function parseNodeName(text: string): string | null {
  return NODE_NAME.test(text) ? text : null;
}

function parseInteger(text: string, least: number, most: number): number | null {
  const value = PLAIN_INTEGER.test(text) ? Number(text) : Number.NaN;
  return value >= least && value <= most ? value : null;
}

function parseScale(text: string): number | null {
  const value = PLAIN_DECIMAL.test(text) ? Number(text) : Number.NaN;
  return value > 0 && value <= 1 ? value : null;
}

function parseRatio(text: string): number | null {
  const value = PLAIN_DECIMAL.test(text) ? Number(text) : Number.NaN;
  return value <= 1 ? value : null;
}

function parseBoolean(text: string): boolean | null {
  if (text === "true") return true;
  return text === "false" ? false : null;
}

function parseWord<Word extends string>(text: string, words: readonly Word[]): Word | null {
  return words.find((word) => word === text) ?? null;
}

function parseRegions(text: string): Region[] | null {
  const names = text.split(",").map((name) => name.trim());
  if (!names.every(isRegion)) return null;
  return REGIONS.filter((region) => names.includes(region));
}

function parseDatabaseUrl(text: string): string | null {
  return ["postgres:", "postgresql:"].includes(protocolOf(text)) ? text : null;
}

function parseNatsUrl(text: string): string | null {
  const servers = text.split(",").map((server) => server.trim());
  return servers.every((server) => ["nats:", "tls:"].includes(protocolOf(server))) ? servers.join(",") : null;
}

function parsePlainUrl(text: string): string | null {
  if (!["http:", "https:"].includes(protocolOf(text))) return null;
  const { username, password, search, hash } = new URL(text);
  return username + password + search + hash === "" ? text : null;
}

/** The protocol of a URL; empty for a text that is no URL. */
function protocolOf(text: string): string {
  return URL.canParse(text) ? new URL(text).protocol : "";
}
