import type { IService } from "kubernetes-models/v1/Service";
import { findWorkloads, ofKind, type Resource } from "./manifests.ts";
import { selects } from "./network-policies.ts";

interface Selecting {
  spec?: {
    selector?: { matchLabels?: Record<string, string> };
    scaleTargetRef?: { kind: string; name: string };
    rules?: { http?: { paths: { backend: { service?: { name: string; port?: { name?: string } } } }[] } }[];
  };
}

/** Complains of every selector that selects no pod, or more pods than it should. */
export function judgeSelectors(resources: readonly Resource[]): string[] {
  const workloads = findWorkloads(resources);
  const services = ofKind<IService>(resources, "Service");
  const lost: string[] = [];

  for (const { metadata, spec } of services) {
    const found = workloads.filter(({ labels }) => selects({ matchLabels: spec?.selector ?? {} }, labels));
    const targets = (spec?.ports ?? []).map(({ targetPort }) => targetPort);
    const isServed =
      found.length === 1 &&
      targets.every((target) => found[0]?.container.ports?.some(({ name }) => name === target));
    if (!isServed) lost.push(`Service ${metadata.name}`);
  }
  for (const { kind, metadata, spec } of ["Deployment", "StatefulSet"].flatMap((kind) =>
    ofKind<Selecting>(resources, kind),
  )) {
    const own = workloads.find((workload) => workload.kind === kind && workload.name === metadata.name);
    const found = workloads.filter(({ labels }) => selects(spec?.selector ?? {}, labels));
    if (found.length !== 1 || found[0] !== own) lost.push(`${kind} ${metadata.name}`);
  }
  for (const { metadata, spec } of ofKind<Selecting>(resources, "PodDisruptionBudget")) {
    if (workloads.filter(({ labels }) => selects(spec?.selector ?? {}, labels)).length !== 1) {
      lost.push(`PodDisruptionBudget ${metadata.name}`);
    }
  }
  for (const { kind, metadata, spec } of ["HorizontalPodAutoscaler", "ScaledObject"].flatMap((kind) =>
    ofKind<Selecting>(resources, kind),
  )) {
    const target = spec?.scaleTargetRef;
    if (
      !resources.some((resource) => resource.kind === target?.kind && resource.metadata.name === target.name)
    )
      lost.push(`${kind} ${metadata.name}`);
  }
  for (const { metadata, spec } of ofKind<Selecting>(resources, "Ingress")) {
    for (const path of spec?.rules?.flatMap(({ http }) => http?.paths ?? []) ?? []) {
      const { name, port } = path.backend.service ?? {};
      const service = services.find((candidate) => candidate.metadata.name === name);
      if (!service?.spec?.ports?.some((offered) => offered.name === port?.name))
        lost.push(`Ingress ${metadata.name}`);
    }
  }
  return lost;
}
