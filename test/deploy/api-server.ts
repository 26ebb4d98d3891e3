import type { Resource } from "./manifests.ts";

/** A write that kubectl sent. The server keeps the writes in their order. */
export interface Sent {
  method: string;
  /** The path without the query. */
  path: string;
  body: Partial<Resource>;
}

export interface ApiServer {
  url: string;
  sent: Sent[];
  /** The present objects by their paths. */
  kept: Map<string, Partial<Resource>>;
  stop(): Promise<void>;
}

interface Kind {
  kind: string;
  plural: string;
  isClusterWide?: boolean;
}

/** The kinds that a cluster knows once the documents' operators are installed. */
const KINDS: Readonly<Record<string, readonly Kind[]>> = {
  v1: [
    { kind: "Namespace", plural: "namespaces", isClusterWide: true },
    { kind: "ConfigMap", plural: "configmaps" },
    { kind: "Secret", plural: "secrets" },
    { kind: "Service", plural: "services" },
    { kind: "ServiceAccount", plural: "serviceaccounts" },
    { kind: "Pod", plural: "pods" },
    { kind: "Node", plural: "nodes", isClusterWide: true },
  ],
  "apps/v1": [
    { kind: "Deployment", plural: "deployments" },
    { kind: "StatefulSet", plural: "statefulsets" },
  ],
  "batch/v1": [{ kind: "Job", plural: "jobs" }],
  "networking.k8s.io/v1": [
    { kind: "NetworkPolicy", plural: "networkpolicies" },
    { kind: "Ingress", plural: "ingresses" },
  ],
  "policy/v1": [{ kind: "PodDisruptionBudget", plural: "poddisruptionbudgets" }],
  "autoscaling/v2": [{ kind: "HorizontalPodAutoscaler", plural: "horizontalpodautoscalers" }],
  "scheduling.k8s.io/v1": [{ kind: "PriorityClass", plural: "priorityclasses", isClusterWide: true }],
  "keda.sh/v1alpha1": [{ kind: "ScaledObject", plural: "scaledobjects" }],
  "monitoring.coreos.com/v1": [
    { kind: "PodMonitor", plural: "podmonitors" },
    { kind: "PrometheusRule", plural: "prometheusrules" },
  ],
  "postgresql.cnpg.io/v1": [
    { kind: "Cluster", plural: "clusters" },
    { kind: "Pooler", plural: "poolers" },
    { kind: "ScheduledBackup", plural: "scheduledbackups" },
    { kind: "Backup", plural: "backups" },
  ],
  "barmancloud.cnpg.io/v1": [{ kind: "ObjectStore", plural: "objectstores" }],
  "external-secrets.io/v1": [{ kind: "ExternalSecret", plural: "externalsecrets" }],
};

/**
 * The parts of a Kubernetes API server that kubectl needs to apply, to delete and to wait. The server keeps the objects
 * that it is sent, and reports every object as ready and complete. It validates, defaults and starts nothing.
 */
export function startApiServer(): ApiServer {
  const sent: Sent[] = [];
  const kept = new Map<string, Partial<Resource>>();
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    async fetch(request) {
      const { pathname, searchParams } = new URL(request.url);
      const known = describe(pathname);
      if (known !== null) return Response.json(known);
      if (request.method === "GET") return read(pathname, searchParams);

      const body = decode(await request.bytes());
      sent.push({ method: request.method, path: pathname, body });
      return write(request.method, pathname, body);
    },
  });

  function read(path: string, query: URLSearchParams): Response {
    const of = findKind(path);
    if (query.has("watch")) return watch(of);
    const own = kept.get(path);
    if (own !== undefined) return Response.json(ready(own));
    if (of === null || of.isOne) return notFound(path);
    const name = /metadata\.name=(.*)/.exec(query.get("fieldSelector") ?? "")?.[1];
    const items = [...kept].filter(
      ([place, { metadata }]) =>
        place.startsWith(`${path}/`) && (name === undefined || metadata?.name === name),
    );
    return Response.json({
      kind: `${of.kind}List`,
      apiVersion: of.apiVersion,
      metadata: { resourceVersion: "1" },
      items: items.map(([, item]) => ready(item)),
    });
  }

  function write(method: string, path: string, body: Partial<Resource>): Response {
    switch (method) {
      case "POST":
        kept.set(`${path}/${body.metadata?.name}`, body);
        return Response.json(body, { status: 201 });
      case "PATCH": {
        const place = path.replace(/\/scale$/, "");
        const before = kept.get(place);
        if (before === undefined) return notFound(path);
        // A list is a JSON patch, whose effect no test needs.
        const after = Array.isArray(body) ? before : (merge(before, body) as Partial<Resource>);
        kept.set(place, after);
        if (place !== path) return Response.json({ ...body, apiVersion: "autoscaling/v1", kind: "Scale" });
        return Response.json(after);
      }
      case "DELETE":
        return kept.delete(path) ? Response.json({ kind: "Status", status: "Success" }) : notFound(path);
      default:
        return new Response("not served here", { status: 405 });
    }
  }

  return { url: `http://127.0.0.1:${server.port}`, sent, kept, stop: () => server.stop(true) };
}

/** Answers a watch. Objects never change by themselves; the bookmark makes the answer begin. */
function watch(of: Found | null): Response {
  const object = { kind: of?.kind, apiVersion: of?.apiVersion, metadata: { resourceVersion: "1" } };
  const bookmark = `${JSON.stringify({ type: "BOOKMARK", object })}\n`;
  const events = new ReadableStream({ start: (controller) => controller.enqueue(bookmark) });
  return new Response(events, { headers: { "content-type": "application/json" } });
}

/** The status of a ready resource: every condition that kubectl may wait for, and as many pods as wanted. */
function ready(resource: Partial<Resource> & { spec?: { replicas?: number } }): object {
  const count = resource.spec?.replicas ?? 1;
  const conditions = ["Ready", "Complete", "Available", "Progressing"].map((type) => ({
    type,
    status: "True",
    reason: "NewReplicaSetAvailable",
  }));
  return {
    ...resource,
    metadata: { ...resource.metadata, generation: 1, resourceVersion: "1", uid: resource.metadata?.name },
    spec: { updateStrategy: { type: "RollingUpdate" }, ...resource.spec, replicas: count },
    status: {
      observedGeneration: 1,
      conditions,
      replicas: count,
      updatedReplicas: count,
      readyReplicas: count,
      availableReplicas: count,
      currentRevision: "1",
      updateRevision: "1",
    },
  };
}

/** The pages that tell kubectl which kinds there are, and that the server itself checks the fields. */
function describe(path: string): object | null {
  const groups = Object.keys(KINDS).filter((apiVersion) => apiVersion.includes("/"));
  if (path === "/api") return { kind: "APIVersions", versions: ["v1"] };
  if (path === "/apis") {
    return {
      kind: "APIGroupList",
      apiVersion: "v1",
      groups: groups.map((groupVersion) => {
        const [name = "", version = ""] = groupVersion.split("/");
        const preferred = { groupVersion, version };
        return { name, versions: [preferred], preferredVersion: preferred };
      }),
    };
  }
  if (path === "/version") return { major: "1", minor: "32", gitVersion: "v1.32.0" };
  const schemas = Object.keys(KINDS).map((apiVersion) => [pathOf(apiVersion).slice(1), apiVersion] as const);
  if (path === "/openapi/v3") {
    const paths = schemas.map(([place]) => [place, { serverRelativeURL: `/openapi/v3/${place}` }]);
    return { paths: Object.fromEntries(paths) };
  }
  const schema = schemas.find(([place]) => path === `/openapi/v3/${place}`);
  if (schema !== undefined) return openApiOf(schema[1]);
  const resources = schemas.find(([place]) => path === `/${place}`);
  if (resources === undefined) return null;
  return {
    kind: "APIResourceList",
    apiVersion: "v1",
    groupVersion: resources[1],
    resources: (KINDS[resources[1]] ?? []).map(({ kind, plural, isClusterWide = false }) => ({
      name: plural,
      singularName: kind.toLowerCase(),
      namespaced: !isClusterWide,
      kind,
      verbs: ["create", "delete", "get", "list", "patch", "update", "watch"],
    })),
  };
}

function openApiOf(apiVersion: string): object {
  const [group, version] = apiVersion.includes("/") ? apiVersion.split("/") : ["", apiVersion];
  const paths = (KINDS[apiVersion] ?? []).map(({ kind, plural }) => [
    `${pathOf(apiVersion)}/${plural}/{name}`,
    {
      patch: {
        parameters: [{ name: "fieldValidation", in: "query" }],
        "x-kubernetes-group-version-kind": { group, version, kind },
      },
    },
  ]);
  return { openapi: "3.0.0", info: { title: "Kubernetes" }, paths: Object.fromEntries(paths) };
}

const pathOf = (apiVersion: string) => `/${apiVersion === "v1" ? "api" : "apis"}/${apiVersion}`;

interface Found {
  kind: string;
  apiVersion: string;
  isOne: boolean;
}

function findKind(path: string): Found | null {
  for (const [apiVersion, kinds] of Object.entries(KINDS)) {
    if (!path.startsWith(`${pathOf(apiVersion)}/`)) continue;
    const words = path.slice(pathOf(apiVersion).length + 1).split("/");
    const [plural, name] = words[0] === "namespaces" && words.length > 2 ? words.slice(2) : words;
    const found = kinds.find((kind) => kind.plural === plural);
    if (found !== undefined) return { kind: found.kind, apiVersion, isOne: name !== undefined };
  }
  return null;
}

const PROTOBUF = "k8s\0";

/** Decodes JSON, and the name alone of the protocol buffers that `kubectl create` sends. */
function decode(bytes: Uint8Array): Partial<Resource> {
  const text = new TextDecoder().decode(bytes);
  if (!text.startsWith(PROTOBUF)) return text === "" ? {} : JSON.parse(text);
  const [type, object] = [1, 2].map((number) => findField(bytes.subarray(PROTOBUF.length), number));
  const textOf = (message: Uint8Array, number: number) =>
    new TextDecoder().decode(findField(message, number));
  if (type === undefined || object === undefined) return {};
  return {
    apiVersion: textOf(type, 1),
    kind: textOf(type, 2),
    metadata: { name: textOf(findField(object, 1), 1) },
  };
}

/** The first field of this number in a message whose earlier fields are all texts or messages. */
function findField(message: Uint8Array, number: number): Uint8Array {
  let at = 0;
  while (at < message.length) {
    const field = (message[at++] ?? 0) >> 3;
    let [length, shift, byte] = [0, 0, 0x80];
    while (byte >= 0x80) {
      byte = message[at++] ?? 0;
      length |= (byte & 0x7f) << shift;
      shift += 7;
    }
    if (field === number) return message.subarray(at, at + length);
    at += length;
  }
  return new Uint8Array();
}

const notFound = (path: string) =>
  Response.json(
    { kind: "Status", apiVersion: "v1", status: "Failure", reason: "NotFound", message: path, code: 404 },
    { status: 404 },
  );

/** A merge patch that merges lists of named objects by their names, as a strategic merge patch does. */
function merge(before: unknown, patch: unknown): unknown {
  if (Array.isArray(patch) && Array.isArray(before) && patch.every((item) => isNamed(item))) {
    const others = before.filter((item) => !patch.some(({ name }) => isNamed(item) && item.name === name));
    return [
      ...others,
      ...patch.map((item) => merge(before.find((old) => isNamed(old) && old.name === item.name) ?? {}, item)),
    ];
  }
  if (!isObject(patch) || !isObject(before)) return patch;
  const merged: Record<string, unknown> = { ...before };
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else if (!key.startsWith("$")) merged[key] = merge(merged[key], value);
  }
  return merged;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isNamed = (value: unknown): value is { name: string } =>
  isObject(value) && typeof value.name === "string";
