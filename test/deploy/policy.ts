import type { IPodDisruptionBudget } from "kubernetes-models/policy/v1/PodDisruptionBudget";
import type { IConfigMap } from "kubernetes-models/v1/ConfigMap";
import type { IServiceAccount } from "kubernetes-models/v1/ServiceAccount";
import { findWorkloads, ofKind, type Resource, type Workload } from "./manifests.ts";
import { selects } from "./network-policies.ts";
import { judgeReach } from "./network-reach.ts";
import { judgeOrder } from "./rollout-order.ts";
import { judgeCounts, judgeQueries, judgeScaleDown } from "./scaling.ts";
import { judgeSelectors } from "./selectors.ts";
import { findServices, judgeSettings } from "./settings.ts";

/** The rules for a cell's resources. Each rule answers its complaints, none if it is kept. */
export const RULES: Readonly<Record<string, (resources: readonly Resource[]) => string[]>> = {
  "no container runs as root": ofEachPod(({ pod, container }) => {
    const { runAsNonRoot, runAsUser } = { ...pod.securityContext, ...container.securityContext };
    return runAsNonRoot === true && (runAsUser ?? 0) > 0;
  }),
  "containers are confined": ofEachPod(({ pod, container }) => {
    const own = container.securityContext;
    const isAlone = !pod.hostNetwork && !pod.hostPID && !pod.hostIPC;
    return (
      isAlone &&
      pod.securityContext?.seccompProfile?.type === "RuntimeDefault" &&
      own?.allowPrivilegeEscalation === false &&
      own.privileged !== true &&
      own.capabilities?.drop?.join() === "ALL" &&
      own.capabilities.add === undefined
    );
  }),
  "root file systems are read-only, and nothing of the node is mounted": ofEachPod(
    ({ pod, container }) =>
      container.securityContext?.readOnlyRootFilesystem === true &&
      (pod.volumes ?? []).every(({ hostPath }) => hostPath === undefined),
  ),
  "no pod gets a token of Kubernetes": (resources) => {
    const accounts = ofKind<IServiceAccount>(resources, "ServiceAccount");
    const trusting = accounts.filter((account) => account.automountServiceAccountToken !== false);
    const named = findWorkloads(resources).filter(
      ({ pod }) =>
        pod.automountServiceAccountToken !== false ||
        (pod.serviceAccountName !== undefined &&
          !accounts.some(({ metadata }) => metadata.name === pod.serviceAccountName)),
    );
    return [...trusting.map(({ metadata }) => metadata.name), ...named.map(({ name }) => name)];
  },
  "every container has requests and limits": ofEachPod(({ container }) =>
    [container.resources?.requests, container.resources?.limits].every(
      (amounts) => amounts?.cpu !== undefined && amounts.memory !== undefined,
    ),
  ),
  "whatever goes on running is probed": ofEachPod(
    ({ kind, container }) =>
      kind === "Job" || (container.livenessProbe !== undefined && container.readinessProbe !== undefined),
  ),
  "images have a version": ofEachPod(({ container }) =>
    /^[^@]+:(?!latest$)[\w.-]+$|@sha256:[0-9a-f]{64}$/.test(container.image ?? ""),
  ),
  "every secret is referred to, and none stands here": findSecrets,
  "whoever has the key of the secrets has those beside it, of which there need not be any": ofEachPod(
    ({ container }) => {
      const refOf = (variable: string) =>
        container.env?.find(({ name }) => name === variable)?.valueFrom?.secretKeyRef;
      const [key, fallbacks] = [refOf("SECRETS_KEY"), refOf("SECRETS_KEY_FALLBACKS")];
      return fallbacks?.name === key?.name && (key === undefined || fallbacks?.optional === true);
    },
  ),
  "settings are ones that the services know, with values that they take": judgeSettings,
  "a pod has the time that its drain may take": judgeGrace,
  "a delivery node is named for its pod, of which there is one at a time": (resources) =>
    findServices(resources, "delivery").flatMap(({ kind, name, container }) => {
      const named = container.env?.find((variable) => variable.name === "NODE_NAME")?.valueFrom?.fieldRef;
      const [set] = ofKind<{ spec?: { podManagementPolicy?: string } }>(resources, kind);
      const isSo = kind === "StatefulSet" && named?.fieldPath === "metadata.name";
      return isSo && set?.spec?.podManagementPolicy === "Parallel" ? [] : [name];
    }),
  "pods of a service are spread, and no drain takes two of them at once": judgeSpread,
  "selectors find what they are for": judgeSelectors,
  "pods reach what they need and nothing else": judgeReach,
  "every object names its namespace, so that none goes where a context leads": (resources) =>
    resources
      .filter(({ kind, metadata }) => !CLUSTER_WIDE.includes(kind) && metadata.namespace !== "jobwheel")
      .map(({ kind, metadata }) => `${kind} ${metadata.name}`),
  "nothing is applied before what it needs, and gateways are last": judgeOrder,
  "one alone says how many pods there are": judgeCounts,
  "autoscalers ask for what the services expose": judgeQueries,
  "no scale-down cuts an attempt": judgeScaleDown,
};

const CLUSTER_WIDE = ["Namespace", "PriorityClass"];

/** The broken rules with their complaints. */
export function judgePolicy(resources: readonly Resource[]): Record<string, string[]> {
  const complaints = Object.entries(RULES).map(([rule, judge]) => [rule, judge(resources)] as const);
  return Object.fromEntries(complaints.filter(([, found]) => found.length > 0));
}

function ofEachPod(isKept: (workload: Workload) => boolean): (resources: readonly Resource[]) => string[] {
  return (resources) =>
    findWorkloads(resources)
      .filter(
        (workload) =>
          workload.pod.containers.length !== 1 ||
          workload.pod.initContainers !== undefined ||
          !isKept(workload),
      )
      .map(({ kind, name }) => `${kind} ${name}`);
}

const SECRET_NAME = /PASSWORD|SECRET|KEY|TOKEN|CREDENTIAL|_URL$/;
const NOT_SECRET = ["PUBLIC_URL"];
const CREDENTIALS_IN_URL = /:\/\/[^/\s:@]*:[^/\s@]+@/;

function findSecrets(resources: readonly Resource[]): string[] {
  const written = resources.filter(
    (resource) => resource.kind === "Secret" || CREDENTIALS_IN_URL.test(JSON.stringify(resource)),
  );
  const isSecret = (name: string) => SECRET_NAME.test(name) && !NOT_SECRET.includes(name);
  const variables = findWorkloads(resources).flatMap(({ name: pod, container }) =>
    (container.env ?? [])
      .filter(({ name, valueFrom }) => isSecret(name) && valueFrom?.secretKeyRef === undefined)
      .map(({ name }) => `${name} of ${pod}`),
  );
  const settings = ofKind<IConfigMap>(resources, "ConfigMap").flatMap(({ data }) =>
    Object.keys(data ?? {}).filter(isSecret),
  );
  return [...written.map(({ kind, metadata }) => `${kind} ${metadata.name}`), ...variables, ...settings];
}

/** The time that shutdown.ts gives a process after its drain, and a margin for the kernel. */
const AFTER_DRAIN_SECONDS = 10 + 2;

function judgeGrace(resources: readonly Resource[]): string[] {
  return (["gateway", "worker", "delivery"] as const)
    .flatMap((service) => findServices(resources, service))
    .filter(({ pod, container }) => {
      const drain = container.env?.find(({ name }) => name === "DRAIN_TIMEOUT_MS")?.value;
      const pause = container.lifecycle?.preStop?.sleep?.seconds ?? 0;
      const needed = pause + Number(drain) / 1_000 + AFTER_DRAIN_SECONDS;
      return !((pod.terminationGracePeriodSeconds ?? 0) >= needed);
    })
    .map(({ name }) => name);
}

const SPREAD_OVER = ["topology.kubernetes.io/zone", "kubernetes.io/hostname"];

function judgeSpread(resources: readonly Resource[]): string[] {
  const budgets = ofKind<IPodDisruptionBudget>(resources, "PodDisruptionBudget");
  return (["gateway", "worker", "delivery"] as const)
    .flatMap((service) => findServices(resources, service))
    .filter(({ pod, labels }) => {
      const spread = (pod.topologySpreadConstraints ?? []).filter(
        ({ labelSelector, maxSkew }) =>
          maxSkew === 1 && labelSelector !== undefined && selects(labelSelector, labels),
      );
      const isSpread = SPREAD_OVER.every((key) => spread.some(({ topologyKey }) => topologyKey === key));
      const isKept = budgets.some(
        ({ spec }) => spec?.maxUnavailable === 1 && selects(spec.selector ?? {}, labels),
      );
      return !isSpread || !isKept;
    })
    .map(({ name }) => name);
}
