import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Resource } from "./manifests.ts";

const ROOT = dirname(dirname(import.meta.dir));
/** The packages with the OpenAPI schemas as types, by API group; Kubernetes' own package has all other groups. */
const PACKAGES: Readonly<Record<string, string>> = {
  "postgresql.cnpg.io": "@kubernetes-models/cloudnative-pg/",
  "external-secrets.io": "@kubernetes-models/external-secrets/",
  "keda.sh": "@kubernetes-models/keda/",
  "monitoring.coreos.com": "@kubernetes-models/prometheus-operator/",
};
/** The API groups whose schemas are in no package. */
const UNKNOWN_GROUPS = ["barmancloud.cnpg.io"];

/**
 * The complaints by the schemas of Kubernetes and its extensions: unknown fields, wrong types, missing fields. Each
 * resource becomes a line of a program that declares the resource as its kind's type, and the type checker judges.
 * `unjudged` names the resources without a schema.
 */
export function judgeSchemas(resources: readonly Resource[]): { complaints: string[]; unjudged: string[] } {
  const judged = resources.filter((resource) => !UNKNOWN_GROUPS.includes(groupOf(resource)));
  const unjudged = resources.filter((resource) => !judged.includes(resource)).map(nameOf);
  const lines = judged.map((resource) => {
    const { apiVersion, kind } = resource;
    const path = `${PACKAGES[groupOf(resource)] ?? "kubernetes-models/"}${apiVersion}/${kind}`;
    return `(${JSON.stringify(resource)}) satisfies import("${path}").I${kind};`;
  });

  // The folder is within the checkout, since imports find the packages only from there.
  mkdirSync(join(ROOT, ".cache"), { recursive: true });
  const folder = mkdtempSync(join(ROOT, ".cache", "schemas-"));
  try {
    writeFileSync(join(folder, "resources.ts"), `${lines.join("\n")}\n`);
    writeFileSync(
      join(folder, "tsconfig.json"),
      '{ "extends": "../../tsconfig.json", "include": ["*.ts"] }\n',
    );
    const args = ["check", "--no-script", "--all", "--no-pretty", "-p", folder];
    const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: "utf8" });
    const found = [...`${stdout}${stderr}`.matchAll(/resources\.ts\((\d+),\d+\): error \S+ (.*)/g)];
    if (status !== 0 && found.length === 0) throw new Error(`the type checker failed: ${stdout}${stderr}`);
    const complaints = found.map(([, line, text]) => {
      const resource = judged[Number(line) - 1];
      return `${resource === undefined ? "?" : nameOf(resource)}: ${text}`;
    });
    return { complaints, unjudged };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const nameOf = ({ kind, metadata }: Resource) => `${kind} ${metadata.name}`;

/** The resource's API group; empty for the oldest group, whose version stands alone. */
function groupOf({ apiVersion }: Resource): string {
  return apiVersion.includes("/") ? (apiVersion.split("/")[0] ?? "") : "";
}
