import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { IPodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor";
import { findPromtool } from "./debian-binary.ts";
import { findWorkloads, ofKind, render } from "./manifests.ts";
import {
  judgeDashboard,
  judgeRules,
  judgeRunbook,
  RULES_FILE,
  readDashboard,
  readRules,
} from "./monitoring.ts";
import { TARGET_LABELS } from "./promql.ts";

// The first use of a package of Debian fetches and unpacks it.
setDefaultTimeout(600_000);

const promtool = (...args: string[]) => {
  const { status, stdout, stderr } = spawnSync(findPromtool(), args, { encoding: "utf8" });
  return { status, said: `${stdout}${stderr}` };
};

describe("the alert rules", () => {
  test("are accepted by Prometheus", () => {
    const { status, said } = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES_FILE);
    expect([status, said]).toEqual([0, expect.stringContaining("SUCCESS")]);
  });

  test("ask only for metrics that services expose, in ways that fit them", () => {
    expect(judgeRules()).toEqual([]);
  });

  test("page with the windows of the objectives, fall silent again, and ignore one late attempt in a quiet night", () => {
    const { status, said } = promtool("test", "rules", join(import.meta.dir, "rules.promtool.yaml"));
    expect([status, said]).toEqual([0, expect.stringContaining("SUCCESS")]);
  });

  test("ignore a failover, page for an outage of minutes, and for a node without any success, and ignore a failing target", () => {
    const { status, said } = promtool("test", "rules", join(import.meta.dir, "outages.promtool.yaml"));
    expect([status, said]).toEqual([0, expect.stringContaining("SUCCESS")]);
  });

  test("are the same for Prometheus and for its operator, and a further region has those of its own processes", () => {
    const file = readFileSync(join(dirname(RULES_FILE), "prometheus-rule.yaml"), "utf8");
    const [, below = ""] = file.split("\nspec:\n");
    const indented = readFileSync(RULES_FILE, "utf8").replace(/^(?=.)/gm, "  ");
    expect(below).toBe(indented);
    const groupsOf = (folder: string) =>
      ofKind<{ spec: { groups: { name: string }[] } }>(render(folder), "PrometheusRule").flatMap(({ spec }) =>
        spec.groups.map(({ name }) => name),
      );
    expect(groupsOf("monitoring/home")).toEqual(["jobwheel-cell", "jobwheel-region"]);
    expect(groupsOf("monitoring/region")).toEqual(["jobwheel-region"]);
  });

  test("fit what Prometheus's operator scrapes: the operators' port of each service, by its name", () => {
    const [monitor] = ofKind<IPodMonitor>(render("monitoring/home"), "PodMonitor");
    const { selector, podMetricsEndpoints = [] } = monitor?.spec ?? {};
    const [wanted] = selector?.matchExpressions ?? [];
    expect(wanted?.values).toEqual(["gateway", "worker", "delivery"]);
    for (const { name, labels, container } of findWorkloads(render("overlays/production"))) {
      if (name === "migrate") continue;
      expect([name, wanted?.values?.includes(labels[wanted.key] ?? "")]).toEqual([name, true]);
      expect(container.ports?.map((port) => port.name)).toContain(podMetricsEndpoints[0]?.port);
    }
    const relabeled = podMetricsEndpoints.flatMap(({ relabelings = [] }) => relabelings);
    expect(relabeled.map(({ targetLabel }) => targetLabel)).toEqual(TARGET_LABELS);
  });

  test("state a severity, a summary and what they are about", () => {
    for (const { alert, labels, annotations } of readRules().filter((rule) => rule.alert !== undefined)) {
      expect([alert, labels?.severity]).toEqual([alert, expect.stringMatching(/^(page|ticket)$/)]);
      expect([alert, Object.keys(annotations ?? {})]).toEqual([
        alert,
        ["summary", "description", "runbook_url"],
      ]);
    }
  });
});

test("each alert leads to its section of the runbook, and each section has its four parts", () => {
  expect(judgeRunbook()).toEqual([]);
});

test("the dashboard asks only for metrics that services expose, in ways that fit them", () => {
  expect(judgeDashboard()).toEqual([]);
});

/** Mistakes that Prometheus answers with an empty result. */
const MISTAKES: [mistake: string, expression: string, said: string][] = [
  ["a metric that nobody has", "max(jobwheel_shards_owner)", "nobody exposes jobwheel_shards_owner"],
  ["a label that it does not have", 'max(jobwheel_jobs_due{region="us-east"})', "has no label region"],
  ["a value that never comes", 'max(jobwheel_nodes{state="quiet"})', "state is never quiet"],
  ["a rate of a gauge", "sum(rate(jobwheel_jobs_due[5m]))", "is a gauge, in rate"],
  ["a counter as it stands", "sum(jobwheel_requests_total) > 0", "is a counter, in no function"],
  [
    "a quantile without buckets",
    "histogram_quantile(0.9, sum(rate(jobwheel_request_seconds_sum[5m])))",
    "no buckets",
  ],
  [
    "a quantile without le",
    "histogram_quantile(0.9, sum(rate(jobwheel_request_seconds_bucket[5m])))",
    "no buckets",
  ],
  ["a group by nothing", "max by (shard) (jobwheel_shards_unowned)", "no shard in"],
  ["sides that never match", "max by (kind) (jobwheel_nodes) > max(jobwheel_jobs_due)", "never match"],
  ["no PromQL", "max(jobwheel_jobs_due", "not PromQL"],
  ["a name for what it has not", "max(jobwheel_jobs_due)", "no label region to name"],
];

test.each(MISTAKES)("%s is reported, in a rule and in a panel", (_, expr, said) => {
  const annotations = { description: "{{ $labels.region }}" };
  expect(judgeRules([{ alert: "Wrong", expr, annotations }]).join("\n")).toContain(said);
  const dashboard = readDashboard();
  const panel = { type: "timeseries", title: "Wrong", targets: [{ expr, legendFormat: "{{region}}" }] };
  expect(judgeDashboard({ ...dashboard, panels: [panel] }).join("\n")).toContain(said);
});

test("the judge of the runbook reports a section without an alert, one without a part, and an alert without a section", () => {
  const rule = (alert: string) => ({
    alert,
    expr: "1",
    annotations: { runbook_url: `x#${alert.toLowerCase()}` },
  });
  const whole = "**Symptom.** a\n**How to look.** b\n**What to do.** c\n**What users feel.** d\n";
  const page = `## Alerts\n### One\n${whole}### Two\n${whole.replace("do", "drink")}## Rest\n${whole}`;
  expect(judgeRunbook([rule("One"), rule("Three")], page)).toEqual([
    "Three leads to no section of its own",
    "nothing raises Two",
    "Two lacks: What to do",
  ]);
});
