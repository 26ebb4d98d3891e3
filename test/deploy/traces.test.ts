import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import type { INetworkPolicy } from "kubernetes-models/networking.k8s.io/v1/NetworkPolicy";
import { readConfig } from "../../shared/platform/config.ts";
import { CELLS, DEPLOY, environmentOf, findWorkloads, ofKind, render } from "./manifests.ts";
import { admits } from "./network-policies.ts";
import { judgePolicy } from "./policy.ts";
import { judgeSchemas } from "./schemas.ts";
import { findServices } from "./settings.ts";

/** A busy machine takes minutes to check the manifests by their types. */
setDefaultTimeout(300_000);

const COLLECTOR = { "app.kubernetes.io/name": "opentelemetry-collector" };
const OTLP = 4318;

mkdirSync(join(dirname(DEPLOY), ".cache"), { recursive: true });
const folder = mkdtempSync(join(dirname(DEPLOY), ".cache", "traces-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const production = relative(folder, join(DEPLOY, "overlays/production"));
const component = relative(folder, join(DEPLOY, "components/traces"));
writeFileSync(
  join(folder, "kustomization.yaml"),
  `kind: Kustomization\nnamespace: jobwheel\nresources: [${production}]\ncomponents: [${component}]\n`,
);
const [, ...others] = CELLS.production ?? [];
const resources = [...render(relative(DEPLOY, folder)), ...others.flatMap(render)];
const policies = ofKind<INetworkPolicy>(resources, "NetworkPolicy");

describe("production with the traces component", () => {
  test("keeps every rule and schema", () => {
    expect(judgePolicy(resources)).toEqual({});
    expect(judgeSchemas(resources).complaints).toEqual([]);
  });

  test.each(["gateway", "worker", "delivery"] as const)("gives %s the collector's address", (service) => {
    const [workload] = findServices(resources, service);
    if (workload === undefined) throw new Error(`there is no ${service}`);
    const environment = environmentOf(workload, resources, { podName: "", secretOf: () => "" });
    // The admin needs none of the other settings, some of which are secret.
    expect(readConfig(environment, "admin").traces).toEqual({
      endpoint: "http://opentelemetry-collector.monitoring:4318",
      ratio: 0.01,
    });
  });

  test("lets only the services reach the collector's pods", () => {
    const ways = findWorkloads(resources).map(({ name, labels }) => {
      const reaches = (to: Record<string, string>, namespace: string, port: number) =>
        admits(policies, { labels }, { labels: to, namespace }, port);
      return [
        name,
        reaches(COLLECTOR, "monitoring", OTLP),
        reaches(COLLECTOR, "monitoring", 80) ||
          reaches(COLLECTOR, "elsewhere", OTLP) ||
          reaches({ app: "stranger" }, "monitoring", OTLP),
      ];
    });
    expect(Object.fromEntries(ways.map(([name, ...found]) => [name, found]))).toMatchObject({
      gateway: [true, false],
      worker: [true, false],
      delivery: [true, false],
      migrate: [false, false],
    });
  });
});
