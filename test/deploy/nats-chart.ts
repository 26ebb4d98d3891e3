import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { IStatefulSet } from "kubernetes-models/apps/v1/StatefulSet";
import type { IContainer } from "kubernetes-models/v1/Container";
import type { IEnvVar } from "kubernetes-models/v1/EnvVar";
import type { IPodSpec } from "kubernetes-models/v1/PodSpec";

const VALUES = join(dirname(dirname(import.meta.dir)), "deploy", "nats", "values.yaml");

/** The parts of deploy/nats/values.yaml that are judged here. */
export interface Values {
  config: {
    cluster: { replicas: number };
    jetstream: { fileStore: { pvc: { size: string } }; memoryStore: { maxSize: string } };
    merge: Record<string, unknown>;
  };
  container: {
    image: { tag: string };
    env: Record<string, Omit<IEnvVar, "name">>;
    resources: IContainer["resources"];
    merge: Partial<IContainer>;
  };
  podTemplate: { merge: { metadata: { labels: Record<string, string> }; spec: Partial<IPodSpec> } };
}

export function readValues(): Values {
  return Bun.YAML.parse(readFileSync(VALUES, "utf8")) as Values;
}

/**
 * Writes the configuration as the chart does: JSON, in which a text between << and >> loses its quotes. `own` holds
 * the settings that differ by server.
 */
export function writeConfiguration(values: Values, own: object, storeDir: string): string {
  const { jetstream, merge } = values.config;
  const configuration = {
    ...own,
    jetstream: {
      store_dir: storeDir,
      max_file_store: `<< ${jetstream.fileStore.pvc.size} >>`,
      max_memory_store: `<< ${jetstream.memoryStore.maxSize} >>`,
    },
    ...merge,
  };
  return JSON.stringify(configuration, null, 2).replace(/"<<\s+(.*?)\s+>>"/g, "$1");
}

/** The parts of the chart's StatefulSet that the values decide, so that the rules for pods apply to it. */
export function natsStatefulSet({ config, container, podTemplate }: Values) {
  const { labels } = podTemplate.merge.metadata;
  return {
    apiVersion: "apps/v1",
    kind: "StatefulSet",
    metadata: { name: "nats", namespace: "jobwheel" },
    spec: {
      replicas: config.cluster.replicas,
      selector: { matchLabels: labels },
      template: {
        metadata: { labels },
        spec: {
          ...podTemplate.merge.spec,
          containers: [
            {
              name: "nats",
              image: `nats:${container.image.tag}`,
              env: Object.entries(container.env).map(([name, variable]) => ({ name, ...variable })),
              resources: container.resources ?? {},
              // The values do not decide the chart's own probes.
              livenessProbe: { httpGet: { path: "/healthz", port: "monitor" } },
              readinessProbe: { httpGet: { path: "/healthz", port: "monitor" } },
              ...container.merge,
            },
          ],
        },
      },
    },
  } satisfies IStatefulSet;
}
