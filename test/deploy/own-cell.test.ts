import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Glob } from "bun";
import { DEPLOY, findWorkloads, ofKind, type Resource, render } from "./manifests.ts";
import { judgePolicy } from "./policy.ts";
import { STEPS, stepOf } from "./rollout-order.ts";
import { judgeSchemas } from "./schemas.ts";

setDefaultTimeout(600_000);

const folder = mkdtempSync(join(tmpdir(), "own-cell-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** This repository as another repository refers to it: by git with the release, or as a folder where git is missing. */
const upstream = join(folder, "upstream");
const hasGit = Bun.which("git") !== null;
if (!hasGit)
  console.log("there is no git here: the bases of the test's own cell are folders, not remote ones");
const own = join(folder, "own");

function git(...words: string[]): void {
  const author = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
  const { status, stderr } = spawnSync("git", [...author, ...words], { cwd: upstream, encoding: "utf8" });
  if (status !== 0) throw new Error(`git ${words.join(" ")}: ${stderr}`);
}

function release(tag: string): void {
  if (!hasGit) return;
  git("add", "--all");
  git("commit", "--quiet", "--message", tag);
  git("tag", tag);
}

function edit(file: string, ...changes: [from: string | RegExp, to: string][]): void {
  let text = readFileSync(file, "utf8");
  for (const [from, to] of changes) {
    const changed = text.replaceAll(from, to);
    expect([file, from, changed === text]).toEqual([file, from, false]);
    text = changed;
  }
  writeFileSync(file, text);
}

cpSync(DEPLOY, join(upstream, "deploy"), { recursive: true });
if (hasGit) git("init", "--quiet");
release("v1");
cpSync(join(DEPLOY, "overlays", "production"), join(own, "production"), { recursive: true });
for (const file of new Glob("**/kustomization.yaml").scanSync({ cwd: own, absolute: true })) {
  const text = readFileSync(file, "utf8");
  const base = hasGit ? `- file://${upstream}//deploy/$1?ref=v1` : `- ${upstream}/deploy/$1`;
  writeFileSync(
    file,
    text.replaceAll(/^ *- (?:\.\.\/){2,3}((?:base|components|monitoring|postgres).*)$/gm, `  ${base}`),
  );
}

// The edits of step 1 to the files of one's own.
edit(
  join(own, "production", "shared", "kustomization.yaml"),
  ["registry.example.com", "registry.acme.example"],
  ["jobs.example.com", "jobs.acme.example"],
);
edit(join(own, "production", "shared", "prometheus.yaml"), [": monitoring", ": observability"]);
edit(
  join(own, "production", "ingress.yaml"),
  ["jobs.example.com", "jobs.acme.example"],
  ["letsencrypt", "acme-issuer"],
  ["ingressClassName: traefik", "ingressClassName: nginx"],
  [": traefik", ": ingress-nginx"],
);
edit(join(own, "production", "postgres", "kustomization.yaml"), [
  "s3://jobwheel-backup/",
  "s3://acme/jobwheel",
]);
edit(join(own, "production", "runbook", "runbook.yaml"), ["git.example.com", "git.acme.example"]);
const optional = ["pull-secret", "priority", "dns-cache"].map((name) =>
  hasGit ? `file://${upstream}//deploy/components/${name}?ref=v1` : `${upstream}/deploy/components/${name}`,
);
edit(join(own, "production", "kustomization.yaml"), [
  "components:\n",
  `components:\n${optional.map((name) => `  - ${name}\n`).join("")}`,
]);

const FOLDERS = ["production", "production/postgres", "production/monitoring"];
const renderFolder = (name: string) => render(join(own, name));

describe("a folder of one's own with this repository as a remote base", () => {
  test("keeps every rule with another ingress, another Prometheus and a private registry", () => {
    const [production = [], ...others] = FOLDERS.map(renderFolder);
    const resources = [...production, ...others.flat()];
    expect(judgePolicy(resources)).toEqual({});
    expect(judgeSchemas(resources).complaints).toEqual([]);
    const text = JSON.stringify(resources);
    for (const foreign of ["example.com", "traefik", '"kubernetes.io/metadata.name":"monitoring"']) {
      // Policies add up: those of Postgres leave the operator's metrics open to the namespace with the usual name.
      const where = foreign.includes("monitoring") ? JSON.stringify(production) : text;
      expect([foreign, where.includes(foreign)]).toEqual([foreign, false]);
    }
    for (const { name, pod } of findWorkloads(resources)) {
      const account = ofKind<{ imagePullSecrets?: object[] }>(resources, "ServiceAccount").find(
        ({ metadata }) => metadata.name === pod.serviceAccountName,
      );
      expect([name, account?.imagePullSecrets, pod.priorityClassName]).toEqual([
        name,
        [{ name: "jobwheel-registry" }],
        "jobwheel",
      ]);
    }
    expect(ofKind(resources, "PriorityClass")).toHaveLength(1);
    expect(text).toContain("169.254.20.10/32");
  });

  test("needs only its name changed for a new release, and keeps the other settings", () => {
    edit(join(upstream, "deploy", "base", "gateway", "gateway.yaml"), ["cpu: 500m", "cpu: 510m"]);
    release("v2");
    if (hasGit)
      for (const file of new Glob("**/kustomization.yaml").scanSync({ cwd: own, absolute: true })) {
        writeFileSync(file, readFileSync(file, "utf8").replaceAll("?ref=v1", "?ref=v2"));
      }
    edit(join(own, "production", "shared", "kustomization.yaml"), ["newTag: 0.1.0", "newTag: 0.2.0"]);
    const gateway = findWorkloads(FOLDERS.flatMap(renderFolder)).find(({ name }) => name === "gateway");
    expect(gateway?.container.resources?.requests?.cpu).toBe("510m");
    expect(gateway?.container.image).toBe("registry.acme.example/jobwheel:0.2.0");
  });

  test("passes check:deploy", () => {
    const main = join(import.meta.dir, "main.ts");
    const judge = () =>
      spawnSync(process.execPath, [main, ...FOLDERS.map((name) => join(own, name))], { encoding: "utf8" });
    const good = judge();
    expect([good.status, good.stdout]).toEqual([0, expect.stringContaining("ok     policy")]);
    edit(join(own, "production", "shared", "kustomization.yaml"), ["LOG_LEVEL=info", "LOG_LEVEL=loud"]);
    const bad = judge();
    expect([bad.status, bad.stdout]).toEqual([1, expect.stringContaining("LOG_LEVEL must be")]);
  });
});

describe("gitops", () => {
  const documents = (name: string) =>
    [Bun.YAML.parse(readFileSync(join(DEPLOY, "gitops", name), "utf8"))].flat() as Flux[];
  const nameOf = ({ kind, metadata }: Resource) => `${kind} ${metadata.name}`;

  test("with Flux applies each object in the step of its label, and each step waits for the one before", () => {
    const steps = documents("flux.yaml");
    const all = render("overlays/production");
    expect(steps.map(({ metadata }) => metadata.name)).toEqual(
      ["cell", ...STEPS].map((step) => `jobwheel-${step}`),
    );
    for (const [index, { metadata, spec }] of steps.entries()) {
      const place = join(DEPLOY, "..", ".cache", `flux-${metadata.name}`);
      mkdirSync(place, { recursive: true });
      // Flux's controller writes such a kustomization: the folder with these patches.
      writeFileSync(
        join(place, "kustomization.yaml"),
        JSON.stringify({ resources: ["../../deploy/overlays/production"], patches: spec.patches }),
      );
      const applied = render(place).map(nameOf);
      rmSync(place, { recursive: true });
      expect(applied.sort()).toEqual(
        all
          .filter((resource) => stepOf(resource) === index)
          .map(nameOf)
          .sort(),
      );
      const before = steps[index - 1]?.metadata.name;
      expect(spec.dependsOn ?? []).toEqual(before === undefined ? [] : [{ name: before }]);
      expect([spec.wait, spec.prune]).toEqual([true, true]);
    }
  });

  test("keeps the previous settings until the last pod that needs them is gone", () => {
    const [settings] = ofKind(render("overlays/production"), "ConfigMap");
    expect(settings?.metadata.annotations).toEqual({
      "argocd.argoproj.io/sync-options": "PruneLast=true",
      "kustomize.toolkit.fluxcd.io/prune": "disabled",
    });
  });

  test("with Argo CD names folders and values that exist", () => {
    const text = readFileSync(join(DEPLOY, "gitops", "argo-cd.yaml"), "utf8");
    expect(documents("argo-cd.yaml").map(({ kind }) => kind)).toEqual(["Application", "Application"]);
    expect(text).toContain("path: production/postgres");
    expect(text).toContain("$jobwheel/deploy/nats/values.yaml");
  });
});

interface Flux extends Resource {
  spec: { dependsOn?: object[]; patches: object[]; wait: boolean; prune: boolean };
}
