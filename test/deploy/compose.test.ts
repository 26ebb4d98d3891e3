import { describe, expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { findTargetFault } from "../../shared/domain/target.ts";
import { readConfig } from "../../shared/platform/config.ts";
import { targetRulesOf } from "../../shared/process/service.ts";
import { DEPLOY, environmentOf, findWorkloads, render } from "./manifests.ts";

interface Composed {
  image: string;
  command?: string[];
  environment?: Record<string, string>;
  depends_on?: Record<string, unknown>;
  volumes?: string[];
  stop_grace_period?: string;
  healthcheck?: { test: string[] };
  extra_hosts?: string[];
}

const text = readFileSync(join(DEPLOY, "compose.yaml"), "utf8");
const { services, volumes } = Bun.YAML.parse(text) as {
  services: Record<string, Composed>;
  volumes: Record<string, null>;
};
const GIVEN: Readonly<Record<string, string>> = { SECRETS_KEY: "0".repeat(64), POSTGRES_PASSWORD: "wheel" };
/** Replaces `${NAME:?reason}` as compose does. */
const fillIn = (value: string) =>
  value.replace(/\$\{(\w+):[?-][^}]*\}/g, (_, name: string) => GIVEN[name] ?? "");

function environmentOfService(name: string): Record<string, string> {
  const variables = Object.entries(services[name]?.environment ?? {});
  return Object.fromEntries(variables.map(([variable, value]) => [variable, fillIn(value)]));
}

/** The reason why this service would refuse the laptop as a target in this environment; null if it would accept. */
function laptopFault(
  service: "gateway" | "delivery",
  environment: Record<string, string>,
  host = "host.docker.internal",
): string | null {
  const config = readConfig(environment, service);
  return findTargetFault(`http://${host}:4000/`, targetRulesOf(config, config.port));
}

describe("compose.yaml", () => {
  test("runs two of each service beside NATS, Postgres, Prometheus and Grafana", () => {
    expect(Object.keys(services).sort()).toEqual(
      [
        ...["gateway", "worker", "delivery"].flatMap((service) => [`${service}-1`, `${service}-2`]),
        ...["grafana", "migrate", "nats", "postgres", "prometheus"],
      ].sort(),
    );
  });

  test.each(["gateway", "worker", "delivery"] as const)("gives %s settings that it accepts", (service) => {
    for (const number of [1, 2]) {
      const { command, stop_grace_period: grace = "" } = services[`${service}-${number}`] ?? {};
      expect(command).toEqual([`services/${service}/main.ts`]);
      const config = readConfig(environmentOfService(`${service}-${number}`), service);
      expect(Number.parseInt(grace, 10) * 1_000).toBeGreaterThan(config.drainTimeoutMs + 10_000);
      if (service !== "gateway") expect(config.nodeName).toBe(`${service}-${number}`);
    }
  });

  test("names a version of every image, and only services, volumes and files that exist", () => {
    for (const { image, depends_on: needed = {}, volumes: mounts = [] } of Object.values(services)) {
      expect(image).toMatch(/:(?!latest)[\w.-]+$/);
      for (const name of Object.keys(needed)) expect(Object.keys(services)).toContain(name);
      for (const mount of mounts) {
        const [source = ""] = mount.split(":");
        const isThere = source.startsWith("./") ? existsSync(join(DEPLOY, source)) : source in volumes;
        expect([source, isThere]).toEqual([source, true]);
      }
    }
  });

  test.each([1, 2])(
    "accepts and sends jobs to the laptop itself, and to nothing else nearby (%p)",
    (number) => {
      for (const service of ["gateway", "delivery"] as const) {
        const environment = environmentOfService(`${service}-${number}`);
        expect(laptopFault(service, environment)).toBeNull();
        for (const host of ["10.0.0.1", "postgres", "169.254.169.254"])
          expect(laptopFault(service, environment, host)).not.toBeNull();
      }
      expect(services[`delivery-${number}`]?.extra_hosts).toEqual(["host.docker.internal:host-gateway"]);
    },
  );

  test("has a health check for every service that keeps running", () => {
    const unknown = Object.entries(services).filter(([, { healthcheck }]) => healthcheck === undefined);
    expect(unknown.map(([name]) => name)).toEqual(["migrate"]);
  });

  test.each([
    ["serves", 200, 0],
    ["does not serve", 503, 1],
    ["is not there", null, 1],
  ] as const)("has a health check that notices a service that %s", async (_, status, code) => {
    const server = Bun.serve({
      port: 0,
      fetch: ({ url }) => new Response("", { status: url.endsWith("/readyz") ? (status ?? 0) : 404 }),
    });
    const { port } = server;
    if (status === null) await server.stop(true);
    for (const service of ["gateway-1", "worker-2", "delivery-1"]) {
      const [how, file, ...args] = services[service]?.healthcheck?.test ?? [];
      // The image has one program.
      expect([how, file]).toEqual(["CMD", "/usr/local/bin/bun"]);
      const words = args.map((word) => word.replace("127.0.0.1:9090", `127.0.0.1:${port}`));
      expect(words).not.toEqual(args);
      const check = Bun.spawn([process.execPath, ...words], { env: {}, stdout: "ignore", stderr: "ignore" });
      expect(await check.exited).toBe(code);
    }
    await server.stop(true);
  });

  test("holds no secret", () => {
    const variables = Object.values(services).flatMap(({ environment = {} }) => Object.entries(environment));
    const isGiven = (value: string) => /^\$\{\w+:(\?[^}]*|-)\}$/.test(value);
    const written = variables.filter(([name, value]) => {
      const password = /:\/\/[^:]+:(.*)@/.exec(value)?.[1];
      return (/PASSWORD|KEY/.test(name) && !isGiven(value)) || (password !== undefined && !isGiven(password));
    });
    expect(written).toEqual([]);
  });
});

test("overlays/dev accepts jobs to the laptop itself, and sends them", () => {
  const resources = render("overlays/dev");
  for (const service of ["gateway", "delivery"] as const) {
    const workload = findWorkloads(resources).find(({ name }) => name === service);
    if (workload === undefined) throw new Error(`there is no ${service}`);
    const environment = environmentOf(workload, resources, {
      podName: "pod",
      secretOf: (_, key) =>
        ({ url: "postgres://host/name", key: GIVEN.SECRETS_KEY })[key] ??
        (key === "fallbacks" ? "" : "nats://host"),
    });
    for (const host of ["host.docker.internal", "host.minikube.internal", "172.18.0.1"])
      expect(laptopFault(service, environment, host)).toBeNull();
    for (const host of ["10.96.0.1", "postgres", "169.254.169.254"])
      expect(laptopFault(service, environment, host)).not.toBeNull();
  }
});
