import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Sent } from "./api-server.ts";
import { namespaceOf, type Reader, readBlocks, startReader, type Written } from "./documents.ts";

setDefaultTimeout(600_000);

const PODS = /\/(jobs\/?migrate|statefulsets\/?delivery|deployments\/?worker|deployments\/?gateway)$/;

/** A cluster for each way to install, so that objects of one way cannot help another. */
const readers: Record<"laptop" | "production" | "helm", Reader> = {
  laptop: startReader(),
  helm: startReader(),
  production: startReader(),
};
afterAll(() => Promise.all(Object.values(readers).map((reader) => reader.stop())));

async function runUnder(reader: Reader, heading: string): Promise<Written> {
  const block = readBlocks("README.md").find((candidate) => candidate.heading.startsWith(heading));
  if (block === undefined) throw new Error(`the README has no lines under ${heading}`);
  return reader.run(block.lines);
}

const placeOf = ({ method, path, body }: Sent) =>
  method === "POST" ? `${path}/${body.metadata?.name}` : path.replace(/\/scale$/, "");

/** The settings and accounts that a pod needs at its start and that do not exist when the pod is created. */
function findMissing(sent: readonly Sent[]): string[] {
  const there = new Set<string>();
  return sent.flatMap((write) => {
    const place = placeOf(write);
    if (write.method === "DELETE") there.delete(place);
    else there.add(place);
    const namespace = `/api/v1/namespaces/${namespaceOf(write)}`;
    const text = JSON.stringify(write.body).replaceAll(
      /"[^"]*last-applied-configuration":"(\\.|[^"])*"/g,
      '""',
    );
    const needed = [
      ...[...text.matchAll(/"configMapRef":\{"name":"([^"]+)"/g)].map(([, name]) => `configmaps/${name}`),
      ...[...text.matchAll(/"serviceAccountName":"([^"]+)"/g)].map(([, name]) => `serviceaccounts/${name}`),
    ];
    return needed
      .filter((name) => !there.has(`${namespace}/${name}`))
      .map((name) => `${place} needs ${name}`);
  });
}

function findNamespaces(sent: readonly Sent[]): string[] {
  return [...new Set(sent.flatMap((write) => namespaceOf(write) ?? []))];
}

describe("the README's shell lines, with a kubectl context that leads elsewhere", () => {
  test.each([
    ["On a laptop", "laptop"],
    ["Production", "production"],
    ["With Helm", "helm"],
    ["Watching it", "production"],
    ["A new release", "production"],
  ] as const)(
    "%s: they go to the namespace of Jobwheel alone, and nothing comes too early",
    async (heading, way) => {
      const reader = readers[way];
      // The new release has other settings.
      const shared = join(reader.deploy, "overlays", "production", "shared", "kustomization.yaml");
      if (heading === "A new release")
        writeFileSync(shared, readFileSync(shared, "utf8").replace("LOG_LEVEL=info", "LOG_LEVEL=debug"));
      if (heading === "Production") {
        // The lines wait for the StatefulSet of NATS' chart, which is not rendered here.
        const chart = '{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"nats"},"spec":{}}';
        await reader.run(`echo '${chart}' | kubectl apply -n jobwheel --validate=false -f -`);
      }
      const { code, output, sent, notRun } = await runUnder(reader, heading);
      expect([code, output]).toEqual([0, output]);
      expect(sent).not.toBeEmpty();
      expect(findNamespaces(sent)).toEqual(["jobwheel"]);
      expect(findMissing(reader.api.sent)).toEqual([]);
      for (const command of notRun)
        expect(command).toMatch(/^(docker|kind|openssl|helm|kubectl .* (exec|port-forward)) /);
    },
  );

  test("apply the migration of a new release first and its gateways last, each in a line of its own", () => {
    const { sent } = readers.production.api;
    const again = sent.slice(sent.findIndex(({ method }) => method === "DELETE"));
    const pods = again.map(placeOf).flatMap((place) => PODS.exec(place)?.[1] ?? []);
    expect(pods).toEqual([
      "jobs/migrate",
      "jobs/migrate",
      "statefulsets/delivery",
      "deployments/worker",
      "deployments/gateway",
    ]);
  });
});

describe("the runbook's shell lines, with a kubectl context that leads elsewhere", () => {
  /** These blocks lack something here: a second Postgres, a plugin, an instant, or the files of a restore. */
  const ENDS_EARLY = ["Testing a backup, monthly"];
  const blocks = readBlocks("RUNBOOK.md");
  const [words] = blocks;
  // The secret that the External Secrets Operator would have made.
  beforeAll(async () => {
    const secret = "kubectl -n jobwheel create secret generic jobwheel-secrets-key --from-literal=key=00";
    expect((await readers.production.run(secret)).code).toBe(0);
  });

  test.each(blocks.map(({ heading, lines }, index) => [`${index} ${heading}`, heading, lines]))(
    "%s: they write nowhere but in the namespace of Jobwheel",
    async (_, heading, lines) => {
      const reader = readers.production;
      // The lines run without -e, so that they go on after a search that finds nothing in missing logs.
      const { output, sent } = await reader.run(
        `set +e +o pipefail\n${words?.lines}\nSINCE=2026-11-22T02:00:00Z\nroll() { true; }\n${lines}`,
      );
      const refused = [...output.matchAll(/^(error|Error from server|Usage|bash:).*$/gm)].map(
        ([line]) => line,
      );
      // Here several restarts may come within a second, since nothing has to be waited for.
      const unexpected = refused.filter((line) => !line.includes("triggered within the past second"));
      if (!ENDS_EARLY.includes(heading)) expect(unexpected).toEqual([]);
      for (const namespace of findNamespaces(sent)) expect(["jobwheel", "restore-test"]).toContain(namespace);
    },
  );
});
