import { describe, expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { readConfig } from "../../shared/platform/config.ts";
import { DEPLOY } from "./manifests.ts";

interface Composed {
  image: string;
  command?: string[];
  environment?: Record<string, string>;
  depends_on?: Record<string, unknown>;
  volumes?: string[];
  stop_grace_period?: string;
}

const text = readFileSync(join(DEPLOY, "compose.yaml"), "utf8");
const { services, volumes } = Bun.YAML.parse(text) as {
  services: Record<string, Composed>;
  volumes: Record<string, null>;
};
const GIVEN: Readonly<Record<string, string>> = { SECRETS_KEY: "0".repeat(64), POSTGRES_PASSWORD: "wheel" };
/** As compose does it for `${NAME:?reason}`. */
const fillIn = (value: string) =>
  value.replace(/\$\{(\w+):[?-][^}]*\}/g, (_, name: string) => GIVEN[name] ?? "");

describe("compose.yaml", () => {
  test("runs two of each service beside NATS, Postgres, Prometheus and Grafana", () => {
    expect(Object.keys(services).sort()).toEqual(
      [
        ...["gateway", "worker", "delivery"].flatMap((service) => [`${service}-1`, `${service}-2`]),
        ...["grafana", "migrate", "nats", "postgres", "prometheus"],
      ].sort(),
    );
  });

  test.each(["gateway", "worker", "delivery"] as const)("gives %s settings that it takes", (service) => {
    for (const number of [1, 2]) {
      const {
        command,
        environment = {},
        stop_grace_period: grace = "",
      } = services[`${service}-${number}`] ?? {};
      expect(command).toEqual([`services/${service}/main.ts`]);
      const filled = Object.entries(environment).map(([name, value]) => [name, fillIn(value)]);
      const config = readConfig(Object.fromEntries(filled), service);
      expect(Number.parseInt(grace, 10) * 1_000).toBeGreaterThan(config.drainTimeoutMs + 10_000);
      if (service !== "gateway") expect(config.nodeName).toBe(`${service}-${number}`);
    }
  });

  test("names a version of every image, and nothing that is not there", () => {
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
