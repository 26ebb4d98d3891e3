import { parser } from "@prometheus-io/lezer-promql";

/** A metric that an expression may ask for, with the labels of its series. */
export interface Known {
  type: "counter" | "gauge" | "histogram";
  labels: readonly string[];
}

/** The labels of the series that an expression answers. */
export interface Judged {
  labels: ReadonlySet<string>;
  complaints: string[];
}

/** The labels that a scrape adds to every series, in deploy/compose/prometheus.yml and in the PodMonitor. */
export const TARGET_LABELS = ["service", "instance"];
const PROMETHEUS_OWN: Readonly<Record<string, Known>> = {
  up: { type: "gauge", labels: TARGET_LABELS },
  ALERTS: { type: "gauge", labels: ["alertname", "alertstate", "severity"] },
};
const OF_COUNTERS = ["rate", "increase"];
/** Functions that answer one series without the labels of their argument. */
const WITHOUT_LABELS = ["absent", "vector", "scalar", "time"];
const KEEPING = ["topk", "bottomk"];

type Node = ReturnType<typeof parser.parse>["topNode"];

/**
 * The faults of a PromQL expression about these metrics: its syntax, a metric or label that does not exist, a rate of a
 * metric that is not a counter, a quantile without buckets, two sides that never match. Prometheus itself refuses only
 * the first of these faults, and answers an empty result to the others.
 */
export function judgeExpression(
  expression: string,
  metrics: ReadonlyMap<string, Known>,
  values: ReadonlyMap<string, ReadonlySet<string>>,
): Judged {
  const complaints: string[] = [];
  const complain = (text: string) => complaints.push(text);
  const textOf = (node: Node | null) =>
    node === null ? "" : expression.slice(node.from, node.to).replace(/\s+/g, " ");

  function labelsOf(node: Node | null, within: string): Set<string> {
    switch (node?.name) {
      case "VectorSelector":
        return labelsOfSelector(node, within);
      case "FunctionCall":
        return labelsOfCall(node);
      case "AggregateExpr":
        return labelsOfAggregate(node);
      case "BinaryExpr":
        return labelsOfPair(node, within);
      case "PromQL":
      case "ParenExpr":
      case "MatrixSelector":
      case "SubqueryExpr":
        return labelsOf(node.firstChild, within);
      case "NumberDurationLiteral":
        return new Set();
      default:
        complain(`${node?.name ?? "nothing"} is not understood: ${textOf(node)}`);
        return new Set();
    }
  }

  function labelsOfSelector(node: Node, within: string): Set<string> {
    const name = textOf(node.getChild("Identifier"));
    const known = find(name, metrics);
    if (known === null) {
      complain(`nobody exposes ${name}`);
      return new Set();
    }
    if ((known.type !== "gauge") !== OF_COUNTERS.includes(within))
      complain(`${name} is a ${known.type}, in ${within || "no function"}`);
    for (const matcher of node.getChild("LabelMatchers")?.getChildren("UnquotedLabelMatcher") ?? []) {
      const label = textOf(matcher.getChild("LabelName"));
      if (!known.labels.includes(label)) complain(`${name} has no label ${label}`);
      const written = textOf(matcher.getChild("StringLiteral")).slice(1, -1);
      for (const value of values.has(label) && !written.startsWith("$") ? written.split("|") : [])
        if (!values.get(label)?.has(value)) complain(`${label} is never ${value}`);
    }
    return new Set(known.labels);
  }

  function labelsOfCall(node: Node): Set<string> {
    const name = textOf(node.getChild("FunctionIdentifier"));
    const args = childrenOf(node.getChild("FunctionCallBody")).filter((arg) => arg.name !== "StringLiteral");
    const all = args.map((arg) => labelsOf(arg, name));
    if (WITHOUT_LABELS.includes(name)) return new Set();
    const labels = new Set(all.at(-1));
    if (name === "histogram_quantile" && !labels.delete("le")) complain(`no buckets: ${textOf(node)}`);
    return labels;
  }

  function labelsOfAggregate(node: Node): Set<string> {
    const inner = labelsOf(childrenOf(node.getChild("FunctionCallBody")).at(-1) ?? null, "");
    if (KEEPING.includes(textOf(node.getChild("AggregateOp")))) return inner;
    const modifier = node.getChild("AggregateModifier");
    if (modifier?.getChild("Without")) complain(`only by is understood: ${textOf(node)}`);
    const by = childrenOf(modifier?.getChild("GroupingLabels") ?? null).map(textOf);
    for (const label of by) if (!inner.has(label)) complain(`no ${label} in ${textOf(node)}`);
    return new Set(by);
  }

  function labelsOfPair(node: Node, within: string): Set<string> {
    const sides = [node.firstChild, node.lastChild];
    const [left = new Set<string>(), right = new Set<string>()] = sides.map((side) => labelsOf(side, within));
    const [isLeftNumber, isRightNumber] = sides.map(isNumber);
    if (isLeftNumber) return right;
    if (!isRightNumber && left.symmetricDifference(right).size > 0)
      complain(`sides with different labels never match: ${textOf(node)}`);
    return left;
  }

  const tree = parser.parse(expression);
  tree.iterate({
    enter(node) {
      if (node.type.isError) complain(`not PromQL at ${node.from}: ${expression}`);
    },
  });
  const labels = complaints.length === 0 ? labelsOf(tree.topNode, "") : new Set<string>();
  return { labels, complaints };
}

function isNumber(node: Node | null): boolean {
  if (node?.name === "BinaryExpr") return isNumber(node.firstChild) && isNumber(node.lastChild);
  return node?.name === "NumberDurationLiteral";
}

function childrenOf(node: Node | null): Node[] {
  const children: Node[] = [];
  for (let child = node?.firstChild ?? null; child !== null; child = child.nextSibling) children.push(child);
  return children;
}

/** The metric of that name, or the histogram to which the name belongs. */
function find(name: string, metrics: ReadonlyMap<string, Known>): Known | null {
  const own = PROMETHEUS_OWN[name];
  if (own !== undefined) return own;
  const exact = metrics.get(name);
  if (exact !== undefined && exact.type !== "histogram") return exact;
  const [, family = "", part] = /^(.*)_(bucket|sum|count)$/.exec(name) ?? [];
  const histogram = metrics.get(family);
  if (histogram?.type !== "histogram") return null;
  return { type: "histogram", labels: [...histogram.labels, ...(part === "bucket" ? ["le"] : [])] };
}
