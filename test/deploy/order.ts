import type { INetworkPolicy } from "kubernetes-models/networking.k8s.io/v1/NetworkPolicy";
import { findWorkloads, ofKind, type Resource, type Workload } from "./manifests.ts";
import { selects } from "./network.ts";

/** In this order the services of a release are rolled out, after all that belongs to none of them. */
export const STEPS = ["migrate", "delivery", "worker", "gateway"];
const STEP_LABEL = "app.kubernetes.io/name";
const WAVE = "argocd.argoproj.io/sync-wave";
const HOOK = "argocd.argoproj.io/hook";
const AUTOSCALERS = ["HorizontalPodAutoscaler", "ScaledObject"];

/** The step by hand and with Flux, which select by label: 0 is what has none of the names. */
export const stepOf = ({ metadata }: Resource) => STEPS.indexOf(metadata.labels?.[STEP_LABEL] ?? "") + 1;
const waveOf = ({ metadata }: Resource) => Number(metadata.annotations?.[WAVE] ?? 0);

/**
 * What comes before what it needs: a pod before its settings, its secrets, its account or its ways, a service before one
 * that must be new when it is. By hand and with Flux the steps say so, with Argo CD the waves of one sync.
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

/** What must be there when the pod starts, as far as it is applied with it. */
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
