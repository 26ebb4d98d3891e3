import { readFileSync } from "node:fs";
import { join } from "node:path";
import { stringify } from "yaml";
import { DEPLOY, type Resource, render } from "../manifests.ts";

/** The chart's folder, relative to deploy/. */
export const CHART = "chart";

const GENERATED = "# Written by `npm run chart` from the manifests that Kustomize renders.\n";

/** The placeholder in a manifest for a template's expression. The expression's value is JSON. */
const hole = (expression: string) => `⟦${expression}⟧`;
const setting = (path: string) => hole(`toJson .Values.${path}`);
/** A text whose line is in the output only under this condition. */
const onlyIf = (condition: string, text: string) => `⟦if ${condition}⟧${text}`;

type Fields = Record<string, unknown>;

/** The field of the values that holds the name of each secret. */
const SECRETS: Readonly<Record<string, string>> = {
  "jobwheel-database": "database",
  "jobwheel-nats": "nats",
  "jobwheel-secrets-key": "secretsKey",
  "postgres-ca": "postgresCa",
};
const BY_DUE = "autoscaling.byDue";

/**
 * The generated templates of the chart by their paths: the objects of overlays/production, one object of the further region
 * and the objects of two components, with expressions in the places of a user's values.
 */
export function writeTemplates(): Record<string, string> {
  const production = render("overlays/production");
  const region = render("overlays/production-eu-central").filter(isOutsideStores);
  const components = ["dns-cache", "traces"].map(
    (name) =>
      Bun.YAML.parse(readFileSync(join(DEPLOY, "components", name, "network.yaml"), "utf8")) as Resource,
  );
  const files: Record<string, string> = {};
  for (const resource of [...production, ...region, ...components]) {
    if (resource.kind === "Namespace") continue;
    const file = `templates/${fileOf(resource)}.yaml`;
    files[file] = `${files[file] ?? GENERATED}${writeTemplate(resource)}`;
  }
  return files;
}

const isOutsideStores = ({ metadata }: Resource) => metadata.name === "to-outside-stores";

function fileOf({ kind, metadata }: Resource): string {
  if (kind === "ConfigMap") return "settings";
  if (kind === "ExternalSecret") return "external-secrets";
  if (kind === "Ingress" || metadata.name === "acme") return "ingress";
  const service = metadata.labels?.["app.kubernetes.io/name"];
  return service ?? "network";
}

function writeTemplate(resource: Resource): string {
  const condition = conditionOf(resource);
  const { apiVersion, kind, metadata, ...rest } = walk(resource) as Fields & Resource;
  const namespace = hole(".Release.Namespace | toJson");
  const own = { apiVersion, kind, metadata: { ...metadata, name: nameOf(resource), namespace }, ...rest };
  fill(resource, own);
  const text = stringify(own, { lineWidth: 0, aliasDuplicateObjects: false })
    .split("\n")
    .map((line) => {
      const [all = "", when] = /⟦if (.*?)⟧/.exec(line) ?? [];
      const written = line.replace(all, "").replace(/"?⟦(.*?)⟧"?/g, "{{ $1 }}");
      return when === undefined ? written : `{{- if ${when} }}\n${written}\n{{- end }}`;
    })
    .join("\n");
  return condition === null ? `---\n${text}` : `{{- if ${condition} }}\n---\n${text}{{- end }}\n`;
}

/** The condition under which the object exists; null for an object that always exists. */
function conditionOf({ kind, metadata: { name, labels } }: Resource): string | null {
  const network = ".Values.networkPolicy";
  if (kind === "ExternalSecret") {
    const enabled = ".Values.externalSecrets.enabled";
    return name in SECRETS ? enabled : `and ${enabled} .Values.externalSecrets.stores`;
  }
  if (kind === "HorizontalPodAutoscaler")
    return "and .Values.gateway.enabled .Values.autoscaling.gateway.enabled";
  if (kind === "ScaledObject") return `.Values.${BY_DUE}.enabled`;
  if (kind === "Ingress" || (kind === "NetworkPolicy" && ["gateway", "acme"].includes(name)))
    return "and .Values.gateway.enabled .Values.ingress.enabled";
  if (name === "to-outside-stores") return `or ${network}.outsidePostgres ${network}.outsideNats`;
  if (name === "dns-cache") return `${network}.dnsCache`;
  if (name === "to-collector") return `${network}.traces`;
  const service = labels?.["app.kubernetes.io/name"];
  if (service === "gateway") return ".Values.gateway.enabled";
  return service === "migrate" ? ".Values.migration.enabled" : null;
}

function nameOf({ kind, metadata: { name } }: Resource): string {
  if (kind === "ConfigMap") return hole('include "jobwheel.settings" .');
  // A Job cannot be changed, so each revision has a Job of its own.
  if (kind === "Job") return `${name}-${hole(".Release.Revision")}`;
  const secret = SECRETS[name];
  return kind === "ExternalSecret" && secret !== undefined ? setting(`secrets.${secret}`) : name;
}

/** Replaces the references that objects of all kinds have in the same places: to settings, secrets and Prometheus. */
function walk(node: unknown, key = ""): unknown {
  if (Array.isArray(node)) return node.map((item) => walk(item));
  if (typeof node !== "object" || node === null) {
    if (key === "serverAddress") return setting(`${BY_DUE}.prometheus`);
    return key === "secretName" && node === "postgres-ca" ? setting("secrets.postgresCa") : node;
  }
  const fields = Object.fromEntries(Object.entries(node).map(([name, value]) => [name, walk(value, name)]));
  if (key === "configMapRef") fields.name = hole('include "jobwheel.settings" .');
  if (key === "secretKeyRef") fields.name = nameOfSecret(String(fields.name));
  if (key === "secretStoreRef") fields.name = setting("externalSecrets.secretStore");
  return fields;
}

function nameOfSecret(name: string): string {
  const secret = SECRETS[name];
  if (secret === undefined) throw new Error(`values.yaml does not name the secret ${name}`);
  return setting(`secrets.${secret}`);
}

/** Replaces the parts that only this kind of object has. Throws if the manifest no longer has such a place. */
function fill({ kind, metadata: { name } }: Resource, own: Fields): void {
  const set = (path: string, value: unknown) => put(own, path.split("."), value);
  switch (kind) {
    case "ConfigMap":
      own.data = hole('include "jobwheel.settingsData" .');
      // Pods of the previous release need their settings until the last of these pods is gone.
      set("metadata.annotations.+helm\\sh/resource-policy", "keep");
      break;
    case "ServiceAccount":
      own.imagePullSecrets = onlyIf(
        ".Values.imagePullSecret",
        hole('list (dict "name" .Values.imagePullSecret) | toJson'),
      );
      break;
    case "Deployment":
    case "StatefulSet":
    case "Job":
      fillPods(kind, name, set);
      break;
    case "HorizontalPodAutoscaler":
      set("spec.minReplicas", setting("autoscaling.gateway.min"));
      set("spec.maxReplicas", setting("autoscaling.gateway.max"));
      break;
    case "ScaledObject":
      set("spec.minReplicaCount", setting(`${BY_DUE}.${name}.min`));
      set("spec.maxReplicaCount", setting(`${BY_DUE}.${name}.max`));
      break;
    case "Ingress":
      set("metadata.annotations", setting("ingress.annotations"));
      set("spec.ingressClassName", setting("ingress.className"));
      set("spec.tls.0.hosts.0", setting("ingress.host"));
      set("spec.tls.0.secretName", setting("ingress.tlsSecret"));
      set("spec.rules.0.host", setting("ingress.host"));
      break;
    case "ExternalSecret": {
      const secret = SECRETS[name];
      if (secret !== undefined) set("spec.dataFrom.0.extract.key", setting(`secrets.${secret}`));
      break;
    }
    case "NetworkPolicy":
      fillPolicy(name, set);
      break;
  }
}

function fillPods(kind: string, name: string, set: (path: string, value: unknown) => void): void {
  const values = name === "migrate" ? "migration" : name;
  const container = "spec.template.spec.containers.0";
  const tag = kind === "Job" ? '""' : `.Values.${values}.tag`;
  set(
    `${container}.image`,
    hole(`include "jobwheel.image" (dict "all" .Values "tag" ${tag} "appVersion" .Chart.AppVersion)`),
  );
  set(`${container}.resources`, setting(`${values}.resources`));
  set(
    "spec.template.spec.+priorityClassName",
    onlyIf(".Values.priorityClassName", setting("priorityClassName")),
  );
  if (kind === "Job") return;
  const scaler = name === "gateway" ? "autoscaling.gateway" : BY_DUE;
  set("spec.+replicas", onlyIf(`not .Values.${scaler}.enabled`, setting(`${values}.replicas`)));
  if (name === "gateway") return;
  const regions = hole('dict "name" "REGIONS" "value" (join "," .Values.regions) | toJson');
  set(`${container}.env.+`, onlyIf(".Values.regions", regions));
}

function fillPolicy(name: string, set: (path: string, value: unknown) => void): void {
  const from = "spec.ingress.0.from.0.namespaceSelector.matchLabels.kubernetes\\io/metadata\\name";
  if (name === "ops") set(from, setting("networkPolicy.prometheusNamespace"));
  if (name === "gateway" || name === "acme") set(from, setting("ingress.controllerNamespace"));
  if (name !== "to-outside-stores") return;
  for (const [at, [values, port]] of [
    ["outsidePostgres", 5432] as const,
    ["outsideNats", 4222] as const,
  ].entries()) {
    const network = `.Values.networkPolicy.${values}`;
    const way = `dict "to" (list (dict "ipBlock" (dict "cidr" ${network}))) "ports" (list (dict "protocol" "TCP" "port" ${port}))`;
    set(`spec.egress.${at}`, onlyIf(network, hole(`${way} | toJson`)));
  }
}

/** Sets the value at a path. A step after a + may be missing; + alone appends to a list. A backslash stands for a dot. */
function put(node: unknown, [step = "", ...steps]: string[], value: unknown): void {
  const key = step.replace(/^\+/, "").replaceAll("\\", ".");
  if (Array.isArray(node) && step === "+") {
    node.push(value);
    return;
  }
  const fields = node as Fields | undefined;
  if (fields === undefined || (!step.startsWith("+") && !(key in fields)))
    throw new Error(`the manifest has no ${key}`);
  if (steps.length > 0) put(fields[key], steps, value);
  else fields[key] = value;
}
