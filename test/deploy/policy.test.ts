import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { CELLS, findApplied, renderCell } from "./manifests.ts";
import { judgePolicy, RULES } from "./policy.ts";
import { judgeSchemas } from "./schemas.ts";

/** A busy machine takes minutes to check the manifests by their types. */
setDefaultTimeout(300_000);

const rendered = Object.fromEntries(Object.keys(CELLS).map((cell) => [cell, renderCell(cell)]));

describe("the manifests", () => {
  test("are all judged as a part of some cell", () => {
    expect(Object.values(CELLS).flat().sort()).toEqual(findApplied());
  });

  test.each(Object.keys(CELLS))("of %s keep every rule", (cell) => {
    expect(judgePolicy(rendered[cell] ?? [])).toEqual({});
  });

  test.each(Object.keys(CELLS))("of %s fit the schemas of Kubernetes and its extensions", (cell) => {
    expect(judgeSchemas(rendered[cell] ?? []).complaints).toEqual([]);
  });
});

/** Breaks of each rule: `to` replaces the right text `from` in the JSON of everything that production applies. */
const BROKEN: Record<keyof typeof RULES, [what: string, from: string | RegExp, to: string][]> = {
  "no container runs as root": [
    ["user 0", '"runAsUser":65532', '"runAsUser":0'],
    ["not said", '"runAsNonRoot":true,', ""],
    [
      "one container by itself",
      '"readOnlyRootFilesystem":true',
      '"readOnlyRootFilesystem":true,"runAsUser":0',
    ],
  ],
  "containers are confined": [
    ["escalation", '"allowPrivilegeEscalation":false', '"allowPrivilegeEscalation":true'],
    ["capabilities", '"drop":["ALL"]', '"drop":["NET_RAW"]'],
    ["system calls", '"type":"RuntimeDefault"', '"type":"Unconfined"'],
    ["the node's network", '"enableServiceLinks":false', '"hostNetwork":true'],
  ],
  "root file systems are read-only, and nothing of the node is mounted": [
    ["writable", '"readOnlyRootFilesystem":true', '"readOnlyRootFilesystem":false'],
    ["the node's files", '"volumes":[', '"volumes":[{"name":"all","hostPath":{"path":"/"}},'],
  ],
  "no pod gets a token of Kubernetes": [
    [
      "by its account",
      '"automountServiceAccountToken":false,"kind"',
      '"automountServiceAccountToken":true,"kind"',
    ],
    ["by itself", '"automountServiceAccountToken":false,"con', '"automountServiceAccountToken":true,"con'],
    ["by an account of another", '"serviceAccountName":"gateway"', '"serviceAccountName":"operator"'],
  ],
  "every container has requests and limits": [
    ["no limit of memory", '"limits":{"cpu":"2","memory":"1Gi"}', '"limits":{"cpu":"2"}'],
    ["no requests", '"requests":{"cpu":"500m","memory":"256Mi"}', '"requests":{}'],
  ],
  "whatever goes on running is probed": [
    ["liveness", '"livenessProbe"', '"formerLivenessProbe"'],
    ["readiness", '"readinessProbe"', '"formerReadinessProbe"'],
  ],
  "images have a version": [
    ["the latest", "/jobwheel:0.1.0", "/jobwheel:latest"],
    ["none", "/jobwheel:0.1.0", "/jobwheel"],
    ["half a digest", "/jobwheel:0.1.0", "/jobwheel@sha256:abc"],
  ],
  "every secret is referred to, and none stands here": [
    [
      "a value",
      /\{"name":"SECRETS_KEY","valueFrom":\{"secretKeyRef":\{.*?\}\}\}/,
      '{"name":"SECRETS_KEY","value":"x"}',
    ],
    ["in a URL", '"value":"9090"', '"value":"nats://gateway:pass@nats:4222"'],
    ["in a ConfigMap", '"LOG_LEVEL":"info"', '"SECRETS_KEY":"x"'],
    ["a Secret", '"kind":"ServiceAccount"', '"kind":"Secret"'],
  ],
  "whoever has the key of the secrets has those beside it, of which there need not be any": [
    [
      "required",
      '"name":"jobwheel-secrets-key","optional":true',
      '"name":"jobwheel-secrets-key","optional":false',
    ],
    ["not given", '"name":"SECRETS_KEY_FALLBACKS"', '"name":"LOG_LEVEL"'],
  ],
  "settings are ones that the services know, with values that they take": [
    ["a misspelt name", '"SHARDS_PER_REGION"', '"SHARD_PER_REGION"'],
    ["a wrong value", '"LOG_LEVEL":"info"', '"LOG_LEVEL":"loud"'],
    ["what a service needs", '"name":"NATS_URL"', '"name":"NATS"'],
    ["two ports that are one", '"name":"OPS_PORT","value":"9090"', '"name":"OPS_PORT","value":"8080"'],
  ],
  "a pod has the time that its drain may take": [
    ["too short", '"terminationGracePeriodSeconds":945', '"terminationGracePeriodSeconds":930'],
    ["not said", '"terminationGracePeriodSeconds":945,', ""],
    ["a longer pause", '"sleep":{"seconds":10}', '"sleep":{"seconds":30}'],
  ],
  "a delivery node is named for its pod, of which there is one at a time": [
    ["unnamed", /"name":"NODE_NAME"/g, '"name":"POD_NAME"'],
    ["in order", '"podManagementPolicy":"Parallel"', '"podManagementPolicy":"OrderedReady"'],
    ["any number", '"kind":"StatefulSet"', '"kind":"Deployment"'],
  ],
  "pods of a service are spread, and no drain takes two of them at once": [
    [
      "over machines alone",
      '"topologyKey":"topology.kubernetes.io/zone"',
      '"topologyKey":"kubernetes.io/hostname"',
    ],
    [
      "over zones alone",
      '"topologyKey":"kubernetes.io/hostname"',
      '"topologyKey":"topology.kubernetes.io/zone"',
    ],
    ["unevenly", '"maxSkew":1', '"maxSkew":9'],
    ["two at once", '"maxUnavailable":1,"selector"', '"maxUnavailable":2,"selector"'],
    ["without a budget", '"kind":"PodDisruptionBudget"', '"kind":"NoBudget"'],
  ],
  "selectors find what they are for": [
    ["a Service", '"selector":{"app.kubernetes.io/name":"gateway"}', '"selector":{"app":"gateway"}'],
    ["its port", '"targetPort":"http"', '"targetPort":"https"'],
    ["two workloads", /"app.kubernetes.io\/name":"worker"/g, '"app.kubernetes.io/name":"gateway"'],
    [
      "an autoscaler",
      '"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"gateway"',
      '"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"gate"',
    ],
    ["a budget", '"unhealthyPodEvictionPolicy":"AlwaysAllow"', '"selector":{"matchLabels":{"app":"x"}}'],
    ["an ingress", '"service":{"name":"gateway"', '"service":{"name":"gate"'],
  ],
  "pods reach what they need and nothing else": [
    ["no policy to deny", '"name":"default-deny"', '"name":"default-deny","was":"NetworkPolicy"'],
    ["the metadata service", '"169.254.0.0/16",', ""],
    ["a private range", '"10.0.0.0/8",', ""],
    [
      "the internet for everybody",
      /"podSelector":\{"matchLabels":\{"app.kubernetes.io\/name":"delivery"\}\},"policyTypes":\["Egress"\]/,
      '"podSelector":{},"policyTypes":["Egress"]',
    ],
    ["a setting for trials", '"LOG_LEVEL":"info"', '"ALLOW_INSECURE_TARGETS":"true"'],
    ["targets that are not reached", '"LOG_LEVEL":"info"', '"ALLOWED_TARGET_NETWORKS":"192.168.0.0/16"'],
    ["all IPv6", '"cidr":"2000::/3"', '"cidr":"::/0"'],
    [
      "Postgres for everybody",
      '"values":["gateway","worker","delivery","migrate"]',
      '"values":["gateway","worker","delivery"]',
    ],
    ["no way to NATS", '"port":4222', '"port":4223'],
    [
      "the API closed",
      /"kubernetes.io\/metadata.name":"traefik"/g,
      '"kubernetes.io/metadata.name":"elsewhere"',
    ],
    ["the API for nobody", '"port":"http","protocol":"TCP"', '"port":"ops","protocol":"TCP"'],
    ["Prometheus in front of the API", '"port":"ops","protocol":"TCP"', '"port":"http","protocol":"TCP"'],
  ],
  "every object names its namespace, so that none goes where a context leads": [
    ["a policy", '"name":"default-deny","namespace":"jobwheel"', '"name":"default-deny"'],
    ["another one", '"name":"dns","namespace":"jobwheel"', '"name":"dns","namespace":"default"'],
  ],
  "nothing is applied before what it needs, and gateways are last": [
    ["before the sync", '"argocd.argoproj.io/hook":"Sync"', '"argocd.argoproj.io/hook":"PreSync"'],
    ["gateways first", '"argocd.argoproj.io/sync-wave":"4"', '"argocd.argoproj.io/sync-wave":"1"'],
    ["delivery last", '"argocd.argoproj.io/sync-wave":"2"', '"argocd.argoproj.io/sync-wave":"4"'],
    [
      "the migration without its way",
      '"labels":{"app.kubernetes.io/name":"migrate","app.kubernetes.io/part-of":"jobwheel"},"name":"migrate","namespace":"jobwheel"},"spec":{"egress"',
      '"labels":{"app.kubernetes.io/name":"worker"},"name":"migrate","namespace":"jobwheel"},"spec":{"egress"',
    ],
    [
      "settings with the gateway",
      /("kind":"ConfigMap","metadata":\{)/,
      '$1"labels":{"app.kubernetes.io/name":"gateway"},',
    ],
    ["an autoscaler at once", /"sync-wave":"5"|"argocd.argoproj.io\/sync-wave":"5"/g, '"was":"5"'],
  ],
  "one alone says how many pods there are": [
    ["delivery", '"podManagementPolicy":"Parallel"', '"podManagementPolicy":"Parallel","replicas":3'],
    ["two autoscalers", '"kind":"StatefulSet","name":"delivery"', '"kind":"Deployment","name":"gateway"'],
  ],
  "autoscalers ask for what the services expose": [
    ["a metric of nobody", "sum(jobwheel_attempts_in_flight)", "sum(jobwheel_attempts_on_the_wire)"],
    ["a word that never is", 'start=\\"late\\"', 'start=\\"slow\\"'],
  ],
  "no scale-down cuts an attempt": [
    ["all at once", '"periodSeconds":945', '"periodSeconds":15'],
    ["a short drain", '"value":"930000"', '"value":"600000"'],
  ],
};

describe("a broken manifest is reported", () => {
  const production = JSON.stringify(rendered.production);
  const cases = Object.entries(BROKEN).flatMap(([rule, ways]) => ways.map((way) => [rule, ...way] as const));

  test("for each of the rules", () => {
    expect(Object.keys(BROKEN).sort()).toEqual(Object.keys(RULES).sort());
  });

  test.each(cases)("%s: %s", (rule, _, from, to) => {
    const broken = production.replace(from, to);
    expect(broken).not.toBe(production);
    const resources = JSON.parse(broken).filter(
      ({ metadata }: { metadata: { was?: string } }) => metadata.was === undefined,
    );
    expect(Object.keys(judgePolicy(resources))).toContain(rule);
  });

  test.each([
    ["an unknown field", '"readinessProbe"', '"readynessProbe"'],
    ["an unknown field deep within", '"periodSeconds":2,', '"periodMs":2,'],
    ["a number for a text", '"value":"9090"', '"value":9090'],
    [
      "a word that is none of those allowed",
      '"podManagementPolicy":"Parallel"',
      '"podManagementPolicy":"AllAtOnce"',
    ],
    ["a missing field", '"maxReplicas":12,', ""],
    ["a field of an extension", '"walStorage"', '"walStore"'],
    ["an unknown kind", '"kind":"PodDisruptionBudget"', '"kind":"DisruptionBudget"'],
  ])("by the schemas: %s", (_, from, to) => {
    const broken = production.replace(from, to);
    expect(broken).not.toBe(production);
    expect(judgeSchemas(JSON.parse(broken)).complaints).toHaveLength(1);
  });
});
