import type { INetworkPolicy } from "kubernetes-models/networking.k8s.io/v1/NetworkPolicy";
import { findWorkloads, ofKind, type Resource, type Workload } from "./manifests.ts";
import { selects } from "./network-policies.ts";

/** The order in which the services of a release are rolled out, after all objects that belong to no service. */
export const STEPS = ["migrate", "delivery", "worker", "gateway"];
const STEP_LABEL = "app.kubernetes.io/name";
const WAVE = "argocd.argoproj.io/sync-wave";
const HOOK = "argocd.argoproj.io/hook";
const AUTOSCALERS = ["HorizontalPodAutoscaler", "ScaledObject"];

/** The step of an object by hand and with Flux, which select by label; 0 for an object without these names. */
export const stepOf = ({ metadata }: Resource) => STEPS.indexOf(metadata.labels?.[STEP_LABEL] ?? "") + 1;
const waveOf = ({ metadata }: Resource) => Number(metadata.annotations?.[WAVE] ?? 0);

/**
 * Complains of an object that comes before an object that it needs: a pod before its settings, secrets, account or
 * network policies, or a service before another one whose new release it needs. Steps give the order by hand and with
 * Flux, and sync waves with Argo CD.
 */
export function judgeOrder(resources: readonly Resource[]): string[] {
  const pods = findWorkloads(resources).filter(({ name }) => STEPS.includes(name));
  const makers = pods.map((pod) => ({ pod, maker: makerOf(pod, resources) }));
  const wrong = makers.flatMap(({ pod, maker }) =>
    [...findNeeded(pod, resources)]
      .filter((needed) => stepOf(needed) > stepOf(maker) || waveOf(needed) >= waveOf(maker))
      .map((needed) => `${needed.kind} ${needed.metadata.name} comes after ${pod.name}`),
  );
  const inOrder = makers.toSorted((a, b) => STEPS.indexOf(a.pod.name) - STEPS.indexOf(b.pod.name));
  for (const [index, { pod, maker }] of inOrder.entries()) {
    const hook = maker.metadata.annotations?.[HOOK];
    if (hook !== (maker.kind === "Job" ? "Sync" : undefined)) wrong.push(`${pod.name} has the hook ${hook}`);
    if (stepOf(maker) !== STEPS.indexOf(pod.name) + 1) wrong.push(`${pod.name} is in no step of its own`);
    const before = inOrder[index - 1];
    if (before !== undefined && waveOf(before.maker) >= waveOf(maker))
      wrong.push(`${pod.name} does not wait for ${before.pod.name}`);
  }
  for (const scaler of resources.filter(({ kind }) => AUTOSCALERS.includes(kind))) {
    const last = Math.max(...makers.map(({ maker }) => waveOf(maker)));
    if (waveOf(scaler) <= last)
      wrong.push(`${scaler.kind} ${scaler.metadata.name} is judged before its pods`);
  }
  return wrong;
}

function makerOf({ kind, name }: Workload, resources: readonly Resource[]): Resource {
  const maker = resources.find((resource) => resource.kind === kind && resource.metadata.name === name);
  if (maker === undefined) throw new Error(`nothing makes ${name}`);
  return maker;
}

/** The objects that must exist when the pod starts, if the same folders apply them. */
function findNeeded({ pod, container, labels }: Workload, resources: readonly Resource[]): Set<Resource> {
  const named = new Set([
    ...(container.envFrom ?? []).map(({ configMapRef }) => `ConfigMap ${configMapRef?.name}`),
    ...(container.env ?? []).map(({ valueFrom }) => `ExternalSecret ${valueFrom?.secretKeyRef?.name}`),
    `ServiceAccount ${pod.serviceAccountName}`,
    `PriorityClass ${pod.priorityClassName}`,
  ]);
  const ways = ofKind<INetworkPolicy>(resources, "NetworkPolicy").filter(({ spec }) =>
    selects(spec?.podSelector ?? {}, labels),
  );
  return new Set<Resource>([
    ...resources.filter(({ kind, metadata }) => named.has(`${kind} ${metadata.name}`)),
    ...resources.filter(({ kind }) => kind === "Namespace"),
    ...ways,
  ]);
}
