import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { generate, readGenerated } from "./chart/files.ts";
import { findHelm, renderChart } from "./chart/helm.ts";
import { CHART } from "./chart/templates.ts";
import { DEPLOY, type Resource, render } from "./manifests.ts";

// The first run downloads Helm.
setDefaultTimeout(600_000);
beforeAll(() => void findHelm());

const PUBLIC = { PUBLIC_URL: "https://jobs.example.com", SHARDS_PER_REGION: 64, LOG_LEVEL: "info" };
const IMAGE = { repository: "registry.example.com/jobwheel", tag: "0.1.0" };

/** Values of the chart, and the objects of Kustomize that the chart must render from them. */
const CASES: Record<string, { values: object; byKustomize: () => Resource[] }> = {
  "a cell": {
    values: {
      image: IMAGE,
      ingress: { enabled: true },
      externalSecrets: { enabled: true, stores: true },
      autoscaling: { gateway: { enabled: true }, byDue: { enabled: true } },
    },
    byKustomize: () => render("overlays/production"),
  },
  "a further region": {
    values: {
      image: IMAGE,
      gateway: { enabled: false },
      migration: { enabled: false },
      regions: ["eu-central"],
      externalSecrets: { enabled: true },
      networkPolicy: { outsidePostgres: "192.0.2.10/32", outsideNats: "192.0.2.20/32" },
    },
    byKustomize: () => render("overlays/production-eu-central"),
  },
  "a cell with fixed numbers and the smaller components": {
    values: {
      image: IMAGE,
      imagePullSecret: "jobwheel-registry",
      priorityClassName: "jobwheel",
      networkPolicy: { dnsCache: true, traces: true },
      settings: {
        OTEL_EXPORTER_OTLP_ENDPOINT: "http://opentelemetry-collector.monitoring:4318",
        OTEL_TRACES_SAMPLER_ARG: 0.01,
      },
    },
    byKustomize: () =>
      renderOwn({
        resources: ["namespace", "migration", "delivery", "worker", "gateway"].map((name) => `base/${name}`),
        components: [
          "overlays/production/shared",
          ...["pull-secret", "priority", "dns-cache", "traces"].map((name) => `components/${name}`),
        ],
      }),
  },
};

describe("the chart", () => {
  test("has the files that `npm run chart` writes", () => {
    expect(readGenerated()).toEqual(generate());
  });

  test("is of the version of the services", () => {
    const chart = Bun.YAML.parse(readFileSync(join(DEPLOY, CHART, "Chart.yaml"), "utf8"));
    const { version } = JSON.parse(readFileSync(join(DEPLOY, "..", "package.json"), "utf8"));
    expect(chart).toMatchObject({ version, appVersion: version });
  });

  test.each(Object.keys(CASES))("makes the objects that Kustomize makes: %s", (name) => {
    const { values, byKustomize } = CASES[name] ?? { values: {}, byKustomize: () => [] };
    expect(comparable(renderChart(values))).toEqual(comparable(byKustomize()));
  });

  test("gives other settings another name, and the pods that name", () => {
    const names = ["info", "debug"].map((level) => {
      const text = JSON.stringify(renderChart({ settings: { ...PUBLIC, LOG_LEVEL: level } }));
      return [...new Set(text.match(/\bsettings-\w+/g))];
    });
    expect(names.map(({ length }) => length)).toEqual([1, 1]);
    expect(names[0]).not.toEqual(names[1]);
  });

  test("takes a digest, secrets' own names, and the release before of one service", () => {
    const images = (values: object) =>
      Object.fromEntries(
        renderChart(values).flatMap((resource) => {
          const image = /"image":"(.*?)"/.exec(JSON.stringify(resource))?.[1];
          return image === undefined ? [] : [[resource.metadata.name, image]];
        }),
      );
    expect(images({ image: { repository: "r/j", tag: "2" }, gateway: { tag: "1" } })).toEqual({
      "migrate-1": "r/j:2",
      delivery: "r/j:2",
      worker: "r/j:2",
      gateway: "r/j:1",
    });
    const byDigest = images({ image: { repository: "r/j", digest: "sha256:ab" }, gateway: { tag: "1" } });
    expect([byDigest.worker, byDigest.gateway]).toEqual(["r/j@sha256:ab", "r/j:1"]);
    const own = JSON.stringify(renderChart({ secrets: { database: "ours" } }));
    expect(own).toContain('"name":"ours"');
    expect(own).not.toContain("jobwheel-database");
  });

  test("refuses a value that it does not know", () => {
    expect(() => renderChart({ worker: { replica: 5 } })).toThrow("replica");
    expect(() => renderChart({ worker: { replicas: "five" } })).toThrow("replicas");
  });
});

/** Renders a Kustomization that names folders of deploy/. */
function renderOwn(parts: { resources: string[]; components: string[] }): Resource[] {
  const folder = mkdtempSync(join(tmpdir(), "chart-"));
  try {
    const [resources, components] = [parts.resources, parts.components].map((names) =>
      names.map((name) => relative(folder, join(DEPLOY, name))),
    );
    writeFileSync(
      join(folder, "kustomization.yaml"),
      JSON.stringify({ kind: "Kustomization", namespace: "jobwheel", resources, components }),
    );
    return render(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/**
 * The objects by kind and name, without intended differences: Helm makes the namespace itself, a PriorityClass belongs to
 * the cluster, each revision has its own Job, and the hash in the name of the settings differs between Helm and Kustomize.
 */
function comparable(resources: readonly Resource[]): Record<string, Resource> {
  const text = JSON.stringify(resources)
    .replace(/"settings-\w+"/g, '"settings"')
    .replace('"migrate-1"', '"migrate"')
    .replace(/,?"helm\.sh\/resource-policy":"keep"/, "");
  const kept = (JSON.parse(text) as Resource[]).filter(
    ({ kind }) => kind !== "Namespace" && kind !== "PriorityClass",
  );
  return Object.fromEntries(kept.map((resource) => [`${resource.kind} ${resource.metadata.name}`, resource]));
}
