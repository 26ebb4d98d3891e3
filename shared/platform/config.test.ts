import { describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { type Network, parseNetwork } from "../domain/address.ts";
import { makeKey } from "../domain/key.ts";
import { ConfigError, readConfig, type Service } from "./config.ts";

const NODE = { DATABASE_URL: "postgres://u:pw@db/jobwheel", NATS_URL: "nats://bus:4222" };
const KEY = Buffer.alloc(32, 9).toString("base64");
const OTHER_KEY = Buffer.alloc(32, 8).toString("hex");
const DEVELOPMENT_KEY = makeKey("development", randomBytes);

function linesOf(environment: Record<string, string>, service: Service): readonly string[] {
  try {
    readConfig(environment, service);
  } catch (error) {
    if (error instanceof ConfigError) return error.lines;
    throw error;
  }
  return [];
}

describe("the settings", () => {
  test("have defaults", () => {
    const config = readConfig(NODE, "worker");
    expect(config).toMatchObject({
      host: "0.0.0.0",
      port: 8080,
      opsPort: 9090,
      databaseUrl: NODE.DATABASE_URL,
      natsUrl: NODE.NATS_URL,
      regions: ["us-east", "us-west", "eu-central", "ap-southeast"],
      shardsPerRegion: 64,
      nodeNameIsFixed: false,
      publicUrl: null,
      logLevel: "info",
      logFormat: null,
      dataDir: "./.data",
      secretsKey: null,
      secretsKeyFallbacks: [],
      allowInsecureTargets: false,
      allowedTargetNetworks: [],
      allowedTargetHosts: [],
      attemptTimeoutMs: 900_000,
      webhookTimeoutMs: 15_000,
      webhookRetryScale: 1,
      leaseTtlMs: 10_000,
      drainTimeoutMs: 30_000,
      traces: null,
    });
    expect(config.nodeName).not.toBe(readConfig(NODE, "worker").nodeName);
  });

  test("are read from the environment", () => {
    const config = readConfig(
      {
        ...NODE,
        HOST: "::1",
        PORT: "0",
        OPS_PORT: "0",
        NATS_URL: "nats://a, tls://b:4223",
        REGIONS: " ap-southeast , us-east,us-east",
        SHARDS_PER_REGION: "8",
        NODE_NAME: "delivery-0.zone_b",
        PUBLIC_URL: "https://jobs.example.com",
        LOG_LEVEL: "debug",
        LOG_FORMAT: "human",
        DATA_DIR: "/var/lib/jobwheel",
        DEVELOPMENT_KEY,
        ADMIN_COMMAND: "docker exec jobwheel bun",
        SECRETS_KEY: KEY,
        SECRETS_KEY_FALLBACKS: `${OTHER_KEY}, ${KEY}`,
        ALLOW_INSECURE_TARGETS: "true",
        ALLOWED_TARGET_NETWORKS: " 10.0.0.0/8, fd00::/8",
        ALLOWED_TARGET_HOSTS: "Receiver , .jobs.lan",
        ATTEMPT_TIMEOUT_MS: "1500",
        WEBHOOK_TIMEOUT_MS: "500",
        WEBHOOK_RETRY_SCALE: "0.001",
        LEASE_TTL_MS: "2000",
        DRAIN_TIMEOUT_MS: "930000",
        OTEL_EXPORTER_OTLP_ENDPOINT: "http://collector:4318",
        OTEL_TRACES_SAMPLER_ARG: "0.25",
      },
      "delivery",
    );
    expect(config).toEqual({
      host: "::1",
      port: 0,
      opsPort: 0,
      databaseUrl: NODE.DATABASE_URL,
      natsUrl: "nats://a,tls://b:4223",
      regions: ["us-east", "ap-southeast"],
      shardsPerRegion: 8,
      nodeName: "delivery-0.zone_b",
      nodeNameIsFixed: true,
      publicUrl: "https://jobs.example.com",
      logLevel: "debug",
      logFormat: "human",
      dataDir: "/var/lib/jobwheel",
      firstKeys: { development: DEVELOPMENT_KEY, production: null },
      adminCommand: "docker exec jobwheel bun",
      secretsKey: new Uint8Array(32).fill(9),
      secretsKeyFallbacks: [new Uint8Array(32).fill(8), new Uint8Array(32).fill(9)],
      allowInsecureTargets: true,
      allowedTargetNetworks: [parseNetwork("10.0.0.0/8") as Network, parseNetwork("fd00::/8") as Network],
      allowedTargetHosts: ["receiver", ".jobs.lan"],
      attemptTimeoutMs: 1_500,
      webhookTimeoutMs: 500,
      webhookRetryScale: 0.001,
      leaseTtlMs: 2_000,
      drainTimeoutMs: 930_000,
      traces: { endpoint: "http://collector:4318", ratio: 0.25 },
    });
  });

  test("take no key of another environment, and none that is mistyped", () => {
    const mistyped = DEVELOPMENT_KEY.replace(/.$/, (last) => (last === "0" ? "1" : "0"));
    for (const text of [mistyped, makeKey("production", randomBytes)])
      expect(linesOf({ DEVELOPMENT_KEY: text }, "standalone")).toEqual([
        "DEVELOPMENT_KEY must be a whole key, svc_dev_...",
      ]);
  });

  test("are required as each service needs them", () => {
    expect(linesOf({}, "gateway")).toEqual([
      "DATABASE_URL is required",
      "NATS_URL is required",
      "SECRETS_KEY is required",
    ]);
    expect(linesOf({}, "worker")).toEqual(["DATABASE_URL is required", "NATS_URL is required"]);
    expect(linesOf({ ...NODE, SECRETS_KEY: "" }, "delivery")).toEqual(["SECRETS_KEY is required"]);
    expect(linesOf({}, "standalone")).toEqual([]);
    expect(linesOf({}, "admin")).toEqual([]);
  });

  test("are all reported at once if they are wrong", () => {
    const lines = linesOf(
      { ...NODE, PORT: "80x", REGIONS: "mars", LEASE_TTL_MS: "-1", HOST: "a b" },
      "worker",
    );
    expect(lines.map((line) => line.split(" ")[0])).toEqual(["HOST", "PORT", "REGIONS", "LEASE_TTL_MS"]);
    expect(lines[1]).toBe('PORT must be a whole number from 0 to 65535, not "80x"');
  });

  test.each([
    ["PORT", "65536"],
    ["PORT", "0x10"],
    ["PORT", "8080.5"],
    ["OPS_PORT", "+1"],
    ["HOST", "300.1.1.1"],
    ["HOST", "[::1]"],
    ["HOST", "http://localhost"],
    ["DATABASE_URL", "mysql://db"],
    ["DATABASE_URL", "db:5432"],
    ["NATS_URL", "http://bus"],
    ["NATS_URL", "nats://a,,nats://b"],
    ["REGIONS", "us-east,"],
    ["SHARDS_PER_REGION", "0"],
    ["SHARDS_PER_REGION", "4097"],
    ["NODE_NAME", "a node"],
    ["NODE_NAME", "-a"],
    ["PUBLIC_URL", "jobs.example.com"],
    ["PUBLIC_URL", "https://u:p@jobs.example.com"],
    ["LOG_LEVEL", "INFO"],
    ["LOG_FORMAT", "pretty"],
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"],
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:p@collector:4318"],
    ["OTEL_TRACES_SAMPLER_ARG", "1.01"],
    ["OTEL_TRACES_SAMPLER_ARG", "1%"],
    ["SECRETS_KEY", "c2hvcnQ="],
    ["SECRETS_KEY_FALLBACKS", `${KEY},`],
    ["ALLOW_INSECURE_TARGETS", "yes"],
    ["ALLOWED_TARGET_NETWORKS", "10.0.0.1/8"],
    ["ALLOWED_TARGET_NETWORKS", "10.0.0.0/8,"],
    ["ALLOWED_TARGET_NETWORKS", "intranet.lan"],
    ["ALLOWED_TARGET_HOSTS", "a b"],
    ["ALLOWED_TARGET_HOSTS", "a.lan:8080"],
    ["ALLOWED_TARGET_HOSTS", "http://a.lan"],
    ["ALLOWED_TARGET_HOSTS", "10.0.0.1"],
    ["ATTEMPT_TIMEOUT_MS", "0"],
    ["WEBHOOK_TIMEOUT_MS", "15s"],
    ["WEBHOOK_RETRY_SCALE", "0"],
    ["WEBHOOK_RETRY_SCALE", "1.5"],
    ["LEASE_TTL_MS", "99"],
    ["DRAIN_TIMEOUT_MS", "1e3"],
  ])("are refused where they are wrong: %s=%s", (name, value) => {
    const lines = linesOf({ ...NODE, [name]: value }, "worker");
    expect(lines.map((line) => line.split(" ")[0])).toEqual([name]);
  });

  test("are named part by part where they are lists of targets", () => {
    expect(
      linesOf(
        { ...NODE, ALLOWED_TARGET_NETWORKS: "10.0.0.1/8,fd00::/8,10/8", ALLOWED_TARGET_HOSTS: "*.lan" },
        "worker",
      ),
    ).toEqual([
      'ALLOWED_TARGET_NETWORKS must be networks such as 10.0.0.0/8 or fd00::/8, with commas between, not "10.0.0.1/8"',
      'ALLOWED_TARGET_NETWORKS must be networks such as 10.0.0.0/8 or fd00::/8, with commas between, not "10/8"',
      'ALLOWED_TARGET_HOSTS must be names such as jobs.lan or suffixes such as .jobs.lan, with commas between, not "*.lan"',
    ]);
  });

  test("with secrets are never shown, whatever is wrong with them", () => {
    const secrets = {
      DATABASE_URL: "mysql://u:sesame-db@host/x",
      NATS_URL: "http://u:sesame-nats@host",
      SECRETS_KEY: "sesame-key",
      SECRETS_KEY_FALLBACKS: "sesame-older-key",
      PUBLIC_URL: "https://u:sesame-public@host",
    };
    const lines = linesOf(secrets, "gateway");
    expect(lines.length).toBe(5);
    expect(lines.join("\n")).not.toContain("sesame");
    expect(new ConfigError(lines).message).not.toContain("sesame");
  });

  test("refuse the same port for the API and for operators", () => {
    expect(linesOf({ PORT: "9090" }, "standalone")).toEqual([
      "PORT and OPS_PORT must differ, not both be 9090",
    ]);
    expect(linesOf({ ...NODE, PORT: "9090" }, "worker")).toEqual([]);
    expect(linesOf({ PORT: "0", OPS_PORT: "0" }, "standalone")).toEqual([]);
  });
});

describe("insecure targets", () => {
  test.each([
    [{}, "standalone", true],
    [{ HOST: "localhost" }, "standalone", true],
    [{ HOST: "127.0.0.2" }, "standalone", true],
    [{ HOST: "0.0.0.0" }, "standalone", false],
    [{ HOST: "127.example.com" }, "standalone", false],
    [{ ALLOW_INSECURE_TARGETS: "false" }, "standalone", false],
    [{ HOST: "0.0.0.0", ALLOW_INSECURE_TARGETS: "true" }, "standalone", true],
    [{ ...NODE, SECRETS_KEY: KEY, HOST: "127.0.0.1" }, "gateway", false],
  ] as const)("with %p on the %s: %p", (environment, service, allowed) => {
    const config = readConfig(environment, service);
    expect(config.allowInsecureTargets).toBe(allowed);
    if (service === "standalone" && !("HOST" in environment)) expect(config.host).toBe("127.0.0.1");
  });
});
