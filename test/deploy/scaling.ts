import type { IScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { readConfig } from "../../shared/platform/config.ts";
import { environmentOf, findWorkloads, ofKind, type Resource } from "./manifests.ts";
import { judgeQuery } from "./monitoring.ts";

interface Scaler {
  spec: { scaleTargetRef: { kind?: string; name: string } };
}
interface Replicated {
  spec: { replicas?: number };
}

/** Complains of a replica count that an autoscaler decides as well: every roll-out would undo the autoscaler's count. */
export function judgeCounts(resources: readonly Resource[]): string[] {
  const targets = ["HorizontalPodAutoscaler", "ScaledObject"]
    .flatMap((kind) => ofKind<Scaler>(resources, kind))
    .map(({ spec }) => `${spec.scaleTargetRef.kind} ${spec.scaleTargetRef.name}`);
  const makers = ["Deployment", "StatefulSet"].flatMap((kind) => ofKind<Replicated>(resources, kind));
  const doubled = makers.filter(
    ({ kind, metadata, spec }) => targets.includes(`${kind} ${metadata.name}`) && spec.replicas !== undefined,
  );
  const twice = targets.filter((target, index) => targets.indexOf(target) !== index);
  return [...doubled.map(({ metadata }) => metadata.name), ...twice];
}

/** Complains of metrics that an autoscaler asks for and no service exposes. */
export function judgeQueries(resources: readonly Resource[]): string[] {
  return ofKind<IScaledObject>(resources, "ScaledObject").flatMap(({ metadata, spec }) =>
    spec.triggers.flatMap(({ type, metadata: asked }) =>
      type === "prometheus" ? judgeQuery(asked.query ?? "").map((fault) => `${metadata.name}: ${fault}`) : [],
    ),
  );
}

/** Complains if a delivery node that scales down has less time than the longest attempt, or if two nodes end at once. */
export function judgeScaleDown(resources: readonly Resource[]): string[] {
  const nodes = findWorkloads(resources).filter(({ name }) => name === "delivery");
  return ofKind<IScaledObject>(resources, "ScaledObject").flatMap(({ metadata, spec }) => {
    const node = nodes.find(({ name, kind }) => {
      const target = spec.scaleTargetRef;
      return target.name === name && target.kind === kind;
    });
    if (node === undefined) return [];
    const { DRAIN_TIMEOUT_MS, ATTEMPT_TIMEOUT_MS } = environmentOf(node, resources, {
      podName: "",
      secretOf: () => "",
    });
    const { drainTimeoutMs, attemptTimeoutMs } = readConfig(
      { DRAIN_TIMEOUT_MS, ATTEMPT_TIMEOUT_MS },
      "admin",
    );
    const graceSeconds = node.pod.terminationGracePeriodSeconds ?? 0;
    const down = spec.advanced?.horizontalPodAutoscalerConfig?.behavior?.scaleDown;
    const isOneByOne =
      down?.policies?.length === 1 &&
      down.policies.every(
        ({ type, value, periodSeconds }) => type === "Pods" && value === 1 && periodSeconds >= graceSeconds,
      );
    return [
      ...(drainTimeoutMs > attemptTimeoutMs ? [] : [`${metadata.name} cuts its longest attempts`]),
      ...(isOneByOne ? [] : [`${metadata.name} goes by more than one at a time`]),
    ];
  });
}
