import { spawn } from "node:child_process";
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ApiServer, type Sent, startApiServer } from "./api-server.ts";
import { findKubectl } from "./debian-binary.ts";
import { DEPLOY } from "./manifests.ts";

/** The namespace of the reader's kubectl context, which was last used for something else. */
export const OTHER_NAMESPACE = "elsewhere";
/** Programs in the documents that stand-ins replace here, because they need a container engine, a chart or a cell. */
const STAND_INS = ["docker", "kind", "helm", "npm", "openssl"];
/** The kubectl commands that act in pods, of which there are none. */
const IN_PODS = ["exec", "logs", "port-forward", "cnpg"];
const BLOCK_TIMEOUT_MS = 120_000;

export interface Written {
  code: number;
  output: string;
  sent: Sent[];
  /** The commands that were replaced. */
  notRun: string[];
}

export interface Reader {
  api: ApiServer;
  /** A copy of deploy/ that a test may change. */
  deploy: string;
  /** Runs the lines as they are written, from the root of the checkout. */
  run(lines: string): Promise<Written>;
  stop(): Promise<void>;
}

/** The blocks of shell lines of a document, with the heading above each. */
export function readBlocks(document: "README.md" | "RUNBOOK.md"): { heading: string; lines: string }[] {
  const text = readFileSync(join(DEPLOY, document), "utf8");
  let heading = "";
  return [...text.matchAll(/^#+ (.*)$|^( *)```sh\n([\s\S]*?)^\2```$/gm)].flatMap(
    ([, title, indent = "", lines]) => {
      heading = title ?? heading;
      return lines === undefined
        ? []
        : [{ heading, lines: lines.replaceAll(new RegExp(`^${indent}`, "gm"), "") }];
    },
  );
}

/** A reader who follows the documents, with a kubectl that talks to the API server of api-server.ts. */
export function startReader(): Reader {
  const api = startApiServer();
  const folder = mkdtempSync(join(tmpdir(), "reader-"));
  const bin = join(folder, "bin");
  const checkout = join(folder, "checkout");
  const notRunFile = join(folder, "not-run");
  mkdirSync(bin);
  cpSync(DEPLOY, join(checkout, "deploy"), { recursive: true });
  const config = {
    apiVersion: "v1",
    kind: "Config",
    clusters: [{ name: "test", cluster: { server: api.url } }],
    users: [{ name: "test", user: {} }],
    contexts: ["test", "eu-central"].map((name) => ({
      name,
      context: { cluster: "test", user: "test", namespace: OTHER_NAMESPACE },
    })),
    "current-context": "test",
  };
  writeFileSync(join(folder, "kubeconfig"), JSON.stringify(config));

  const program = (name: string, lines: string) => {
    writeFileSync(join(bin, name), `#!/bin/sh\n${lines}\n`);
    chmodSync(join(bin, name), 0o755);
  };
  const note = (name: string) => `echo "${name} $*" >> ${notRunFile}`;
  for (const name of STAND_INS) program(name, `${note(name)}\necho 0123456789abcdef`);
  const inPods = IN_PODS.map((verb) => `*" ${verb} "*`).join("|");
  program("kubectl", `case " $* " in ${inPods}) ${note("kubectl")};; *) exec ${findKubectl()} "$@";; esac`);

  return {
    api,
    deploy: join(checkout, "deploy"),
    async run(lines) {
      writeFileSync(notRunFile, "");
      const before = api.sent.length;
      const child = spawn("bash", ["-e", "-o", "pipefail", "-c", lines], {
        cwd: checkout,
        env: {
          PATH: `${bin}:${process.env.PATH}`,
          HOME: folder,
          KUBECONFIG: join(folder, "kubeconfig"),
          USER: "dana",
        },
        timeout: BLOCK_TIMEOUT_MS,
      });
      let output = "";
      for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (output += chunk));
      const code = await new Promise<number>((resolve) =>
        child.on("close", (status) => resolve(status ?? -1)),
      );
      const notRun = readFileSync(notRunFile, "utf8").split("\n").filter(Boolean);
      return { code, output, sent: api.sent.slice(before), notRun };
    },
    async stop() {
      await api.stop();
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** The namespace of a write; null for an object of the whole cluster. */
export function namespaceOf({ method, path, body }: Sent): string | null {
  const [, name, isWithin] = /\/namespaces\/?([^/]*)(\/.*)?$/.exec(path) ?? [];
  if (name === undefined) return null;
  if (isWithin !== undefined) return name;
  return method === "POST" ? (body.metadata?.name ?? "") : name;
}
