import { ConfigError, readConfig } from "../../shared/platform/config.ts";
import { environmentOf, findWorkloads, type Resource, type Workload } from "./manifests.ts";

const SERVICES = ["gateway", "worker", "delivery", "admin"] as const;

/** The workloads that run a program of this service, its other commands included. */
export function findServices(resources: readonly Resource[], service: (typeof SERVICES)[number]): Workload[] {
  return findWorkloads(resources).filter(({ container }) =>
    container.args?.some((arg) => arg.startsWith(`services/${service}/`)),
  );
}

/** Every variable from which settings are read. The reader itself names them, so that no list can be out of date. */
export function settingNames(): Set<string> {
  const asked = new Set<string>();
  const listening = new Proxy<Record<string, string | undefined>>(
    {},
    {
      get(_, name) {
        asked.add(String(name));
        return undefined;
      },
    },
  );
  readConfig(listening, "admin");
  return asked;
}

/** Values for the secrets in a form that their readers accept. */
const SECRETS: Readonly<Record<string, string>> = {
  DATABASE_URL: "postgres://user@host/database",
  NATS_URL: "nats://host:4222",
  SECRETS_KEY: "0".repeat(64),
  SECRETS_KEY_FALLBACKS: "1".repeat(64),
};

/** Complains of settings that a service would refuse at its start, and of variables that it would never read. */
export function judgeSettings(resources: readonly Resource[]): string[] {
  const known = settingNames();
  return SERVICES.flatMap((service) =>
    findServices(resources, service).flatMap((workload) => {
      const stand = { podName: `${workload.name}-0`, secretOf: () => "" };
      const environment = environmentOf(workload, resources, stand);
      for (const [name, value] of Object.entries(SECRETS)) if (name in environment) environment[name] = value;
      const unknown = Object.keys(environment).filter((name) => !known.has(name));
      return [
        ...unknown.map((name) => `${workload.name} does not know ${name}`),
        ...wrongSettings(environment, service),
      ];
    }),
  );
}

function wrongSettings(environment: Record<string, string>, service: (typeof SERVICES)[number]): string[] {
  try {
    readConfig(environment, service);
    return [];
  } catch (error) {
    if (error instanceof ConfigError) return [...error.lines];
    throw error;
  }
}
