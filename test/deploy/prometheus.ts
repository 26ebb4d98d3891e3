import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "../flow/support.ts";
import { claimPort } from "../support/port.ts";
import { findPrometheus } from "./debian-binary.ts";

/** An alert that fires, with its labels. */
export type Firing = Record<string, string> & { alertname: string };

/** A real Prometheus that scrapes and evaluates several times a second. */
export interface Prometheus {
  /** The alerts that fire at this moment. */
  firing(): Promise<Firing[]>;
  /** The value of an expression that answers one series; null if it answers none. */
  ask(expression: string): Promise<number | null>;
  stop(): Promise<void>;
}

const START_TIMEOUT_MS = 120_000;
const EVERY = "500ms";

/** Starts Prometheus. `targets` are addresses by service, which get the labels of deploy/compose/prometheus.yml. */
export async function startPrometheus(options: {
  rules: string;
  targets: Record<string, string[]>;
}): Promise<Prometheus> {
  const folder = mkdtempSync(join(tmpdir(), "prometheus-"));
  writeFileSync(join(folder, "rules.yaml"), options.rules);
  const configuration = {
    global: { scrape_interval: EVERY, scrape_timeout: EVERY, evaluation_interval: EVERY },
    rule_files: ["rules.yaml"],
    scrape_configs: [
      {
        job_name: "jobwheel",
        static_configs: Object.entries(options.targets).map(([service, targets]) => ({
          targets,
          labels: { service },
        })),
      },
    ],
  };
  // The file may be JSON, which is YAML as well.
  writeFileSync(join(folder, "prometheus.yml"), JSON.stringify(configuration));
  const base = `http://127.0.0.1:${await claimPort()}`;
  const settings = {
    "config.file": join(folder, "prometheus.yml"),
    "storage.tsdb.path": join(folder, "data"),
    "web.listen-address": new URL(base).host,
    "log.level": "error",
  };
  const command = [
    findPrometheus(),
    ...Object.entries(settings).map(([name, value]) => `--${name}=${value}`),
  ];
  // Prometheus dies with the test process.
  const child = spawn("setpriv", ["--pdeathsig", "KILL", ...command], { stdio: "inherit" });
  const exited = new Promise((resolve) => child.on("exit", resolve));
  const get = async (path: string) => {
    const { data } = (await (await fetch(`${base}/api/v1/${path}`)).json()) as { data: unknown };
    return data;
  };
  const isReady = () =>
    fetch(`${base}/-/ready`)
      .then(({ ok }) => ok)
      .catch(() => false);
  await until(isReady, START_TIMEOUT_MS);
  return {
    async firing() {
      const { alerts } = (await get("alerts")) as { alerts: { state: string; labels: Firing }[] };
      return alerts.filter(({ state }) => state === "firing").map(({ labels }) => labels);
    },
    async ask(expression) {
      const answer = (await get(`query?query=${encodeURIComponent(expression)}`)) as {
        result: { value: [number, string] }[];
      };
      const [series] = answer.result;
      return series === undefined ? null : Number(series.value[1]);
    },
    async stop() {
      child.kill("SIGKILL");
      await exited;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
