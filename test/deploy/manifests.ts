import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { Glob } from "bun";
import type { IDeployment } from "kubernetes-models/apps/v1/Deployment";
import type { IStatefulSet } from "kubernetes-models/apps/v1/StatefulSet";
import type { IJob } from "kubernetes-models/batch/v1/Job";
import type { IConfigMap } from "kubernetes-models/v1/ConfigMap";
import type { IContainer } from "kubernetes-models/v1/Container";
import type { IPodSpec } from "kubernetes-models/v1/PodSpec";
import { findKubectl } from "./debian-binary.ts";
import { natsStatefulSet, readValues } from "./nats-chart.ts";

/** One object of Kubernetes as `kubectl kustomize` prints it. */
export interface Resource {
  apiVersion: string;
  kind: string;
  metadata: {
    name: string;
    namespace?: string;
    labels?: Record<string, string>;
    annotations?: Record<string, string>;
  };
}

/** An object that makes pods. */
export interface Workload {
  kind: string;
  name: string;
  labels: Record<string, string>;
  pod: IPodSpec;
  /** The one container of the pods. */
  container: IContainer;
}

export const DEPLOY = join(dirname(dirname(import.meta.dir)), "deploy");

/** The folders that make up a cell, or a region of one. They are applied and judged together. */
export const CELLS: Readonly<Record<string, readonly string[]>> = {
  dev: ["overlays/dev"],
  production: ["overlays/production", "overlays/production/postgres", "overlays/production/monitoring"],
  "production-eu-central": ["overlays/production-eu-central", "overlays/production-eu-central/monitoring"],
};

/** Finds every folder that is applied by itself, so that each new folder is judged. */
export function findApplied(): string[] {
  return [...new Glob("overlays/**/kustomization.yaml").scanSync({ cwd: DEPLOY })]
    .filter((file) => readFileSync(join(DEPLOY, file), "utf8").includes("\nkind: Kustomization\n"))
    .map((file) => dirname(file))
    .sort();
}

/** Renders a folder, given relative to deploy/. Throws kubectl's message if that fails. */
export function render(folder: string): Resource[] {
  const { status, stdout, stderr } = spawnSync(findKubectl(), ["kustomize", resolve(DEPLOY, folder)], {
    encoding: "utf8",
  });
  if (status !== 0) throw new Error(`${folder}: ${stderr.trim()}`);
  return [Bun.YAML.parse(stdout)].flat() as Resource[];
}

/** All objects of the cell, with NATS where its chart belongs to the cell. */
export function renderCell(cell: string): Resource[] {
  const nats = cell === "production" ? [natsStatefulSet(readValues())] : [];
  return [...(CELLS[cell] ?? []).flatMap(render), ...nats];
}

/** The objects of a kind, with the type of that kind. */
export function ofKind<T>(resources: readonly Resource[], kind: string): (T & Resource)[] {
  return resources.filter((resource) => resource.kind === kind) as (T & Resource)[];
}

export function findWorkloads(resources: readonly Resource[]): Workload[] {
  const makers = ["Deployment", "StatefulSet", "Job"].flatMap((kind) =>
    ofKind<IDeployment | IStatefulSet | IJob>(resources, kind),
  );
  return makers.map(({ kind, metadata, spec }) => {
    const pod = spec?.template.spec;
    const container = pod?.containers[0];
    if (pod === undefined || container === undefined)
      throw new Error(`${kind} ${metadata.name} has no container`);
    return { kind, name: metadata.name, labels: spec?.template.metadata?.labels ?? {}, pod, container };
  });
}

/**
 * The environment of a starting container. `secretOf` replaces the cluster's secrets, and `podName` the pod's name.
 * Throws for a reference to an object that is missing.
 */
export function environmentOf(
  { container, name }: Workload,
  resources: readonly Resource[],
  { podName, secretOf }: { podName: string; secretOf: (secret: string, key: string) => string },
): Record<string, string> {
  const environment: Record<string, string> = {};
  for (const { configMapRef } of container.envFrom ?? []) {
    const map = ofKind<IConfigMap>(resources, "ConfigMap").find(
      ({ metadata }) => metadata.name === configMapRef?.name,
    );
    if (map === undefined) throw new Error(`${name} takes its settings from a ConfigMap that is not there`);
    Object.assign(environment, map.data);
  }
  for (const { name: variable, value, valueFrom } of container.env ?? []) {
    const secret = valueFrom?.secretKeyRef;
    if (secret !== undefined) environment[variable] = secretOf(secret.name ?? "", secret.key);
    else if (valueFrom?.fieldRef?.fieldPath === "metadata.name") environment[variable] = podName;
    else if (value !== undefined) environment[variable] = value;
    else throw new Error(`${name}: nobody knows what ${variable} is`);
  }
  return environment;
}
