import { readFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "./manifests.ts";
import { listLabelValues, listMetrics } from "./metrics-page.ts";
import { judgeExpression, type Known, TARGET_LABELS } from "./promql.ts";

/** Judges the monitoring of deploy/: rules, dashboard and runbook. */

export interface Rule {
  alert?: string;
  record?: string;
  expr: string;
  for?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
}

interface Panel {
  type: string;
  title: string;
  targets?: { expr: string; legendFormat: string }[];
}
interface Dashboard {
  panels: Panel[];
  annotations: { list: { expr: string; titleFormat: string }[] };
  templating: { list: { name: string; query: string | { query: string } }[] };
}

export const RULES_FILE = join(DEPLOY, "monitoring", "home", "rules.yaml");
const read = (...path: string[]) => readFileSync(join(DEPLOY, ...path), "utf8");

export function readRules(): Rule[] {
  const { groups } = Bun.YAML.parse(readFileSync(RULES_FILE, "utf8")) as { groups: { rules: Rule[] }[] };
  return groups.flatMap(({ rules }) => rules);
}

export const readDashboard = () => JSON.parse(read("monitoring", "home", "dashboard.json")) as Dashboard;

/** The metrics that services expose or that the rules record. */
function knownMetrics(rules: readonly Rule[]): Map<string, Known> {
  const known = new Map<string, Known>();
  for (const { name, type, labels } of listMetrics()) {
    const own = labels === "" ? [] : labels.split(", ");
    known.set(name, { type: type as Known["type"], labels: [...own, ...TARGET_LABELS] });
  }
  for (const { record, expr } of rules) {
    if (record === undefined) continue;
    const { labels } = judgeExpression(expr, known, VALUES);
    known.set(record, { type: "gauge", labels: [...labels] });
  }
  return known;
}

const VALUES = listLabelValues().set("service", new Set(["gateway", "worker", "delivery"]));
/** Replaces Grafana's variables as Grafana does. */
const fillIn = (expression: string) => expression.replaceAll("$__rate_interval", "5m");

/** Complains of metrics in rules that no service exposes, and of labels in the rules' texts that the results lack. */
export function judgeRules(rules = readRules()): string[] {
  const known = knownMetrics(rules);
  return rules.flatMap(({ alert, record, expr, labels: own = {}, annotations = {} }) => {
    const { labels, complaints } = judgeExpression(expr, known, VALUES);
    const named = [...JSON.stringify(annotations).matchAll(/\$labels\.(\w+)/g)].map(
      ([, label = ""]) => label,
    );
    const unknown = named.filter((label) => !labels.has(label) && !(label in own));
    return [...complaints, ...unknown.map((label) => `no label ${label} to name`)].map(
      (complaint) => `${alert ?? record}: ${complaint}`,
    );
  });
}

/** Judges one expression as a rule's expression is judged. */
export const judgeQuery = (expression: string): string[] =>
  judgeExpression(expression, knownMetrics(readRules()), VALUES).complaints;

/** Complains of metrics in the dashboard that no service exposes, and of labels in its texts that the results lack. */
export function judgeDashboard(dashboard = readDashboard()): string[] {
  const known = knownMetrics(readRules());
  const judge = (where: string, expression: string, words: string) => {
    const { labels, complaints } = judgeExpression(fillIn(expression), known, VALUES);
    const named = [...words.matchAll(/{{(\w+)}}/g)].map(([, label = ""]) => label);
    const unknown = named.filter((label) => !labels.has(label)).map((label) => `no label ${label} to name`);
    return [...complaints, ...unknown].map((complaint) => `${where}: ${complaint}`);
  };
  const variables = dashboard.templating.list.flatMap(({ name, query }) => {
    const [, metric = "", label = ""] =
      typeof query === "string" ? [] : (/^label_values\((\w+), (\w+)\)$/.exec(query.query) ?? []);
    const isCounted = /_(total|count|sum|bucket)$/.test(metric);
    const expression = isCounted ? `rate(${metric}[5m])` : metric;
    return metric === "" ? [] : judge(`variable ${name}`, expression, `{{${label}}}`);
  });
  return [
    ...variables,
    ...dashboard.annotations.list.flatMap(({ expr, titleFormat }) => judge("annotations", expr, titleFormat)),
    ...dashboard.panels.flatMap(({ type, title, targets = [] }) => [
      ...(type === "row" || targets.length > 0 ? [] : [`${title}: it shows nothing`]),
      ...targets.flatMap(({ expr, legendFormat }) => judge(title, expr, legendFormat)),
    ]),
  ];
}

/** Complains of missing parts of the runbook, and of alerts that lead to no section of it. */
export function judgeRunbook(rules = readRules(), runbook = read("RUNBOOK.md")): string[] {
  const alerts = new Set(rules.flatMap(({ alert }) => alert ?? []));
  const sections = sectionsOf(runbook);
  const about = sections.filter(({ parent }) => parent === "Alerts");
  const misled = rules
    .filter(({ alert, annotations }) => {
      const anchor = annotations?.runbook_url?.split("#")[1];
      return alert !== undefined && !about.some(({ title }) => title === alert && anchorOf(title) === anchor);
    })
    .map(({ alert }) => `${alert} leads to no section of its own`);
  const orphans = about
    .filter(({ title }) => !alerts.has(title))
    .map(({ title }) => `nothing raises ${title}`);
  const partial = sections
    .filter(({ title }) => title !== "Alerts" && title !== WITHOUT_PARTS)
    .flatMap(({ title, text }) =>
      PARTS.filter((part) => !text.includes(`**${part}.**`)).map((part) => `${title} lacks: ${part}`),
    );
  return [...misled, ...orphans, ...partial, ...judgePromqlOf(runbook)];
}

/** Judges the page's blocks of PromQL, in which each line is one expression. */
function judgePromqlOf(page: string): string[] {
  const known = knownMetrics(readRules());
  const blocks = [...page.matchAll(/^```promql\n([^`]*)```$/gm)];
  const expressions = blocks.flatMap(([, block = ""]) => block.trim().split("\n"));
  return expressions.flatMap((expression) => judgeExpression(expression, known, VALUES).complaints);
}

const PARTS = ["Symptom", "How to look", "What to do", "What users feel"];
const WITHOUT_PARTS = "What of this page was not run";
/** The anchor that GitHub and GitLab make for a title. */
const anchorOf = (title: string) =>
  title
    .toLowerCase()
    .replace(/[^\w\- ]/g, "")
    .replaceAll(" ", "-");

/** Each heading, with the text up to the next heading, and the heading above it. */
function sectionsOf(page: string): { title: string; parent: string; text: string }[] {
  let parent = "";
  return page
    .split(/^(?=##+ )/m)
    .filter((part) => part.startsWith("##"))
    .map((part) => {
      const [heading = "", ...lines] = part.split("\n");
      const title = heading.replace(/^#+ /, "");
      if (heading.startsWith("## ")) parent = title;
      return { title, parent: title === parent ? "" : parent, text: lines.join("\n") };
    });
}
