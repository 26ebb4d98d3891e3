import { BlockList, isIPv6 } from "node:net";
import type { ILabelSelector } from "@kubernetes-models/apimachinery/apis/meta/v1/LabelSelector";
import type { INetworkPolicy } from "kubernetes-models/networking.k8s.io/v1/NetworkPolicy";
import type { INetworkPolicyPeer } from "kubernetes-models/networking.k8s.io/v1/NetworkPolicyPeer";
import type { INetworkPolicyPort } from "kubernetes-models/networking.k8s.io/v1/NetworkPolicyPort";

/** One end of a connection: a pod of the namespace, a pod of another namespace, or an address outside. */
export type End =
  | { labels: Record<string, string>; namespace?: string; ports?: Record<string, number> }
  | { address: string };

/**
 * True if the policies allow a TCP connection, as a network plugin would judge. A pod that a policy selects may open or
 * accept only connections that a policy of that direction allows; a pod that no policy selects may do everything.
 */
export function admits(policies: readonly INetworkPolicy[], from: End, to: End, port: number): boolean {
  return (
    admitsOneWay(policies, "Egress", from, to, port, to) &&
    admitsOneWay(policies, "Ingress", to, from, port, to)
  );
}

function admitsOneWay(
  policies: readonly INetworkPolicy[],
  direction: "Ingress" | "Egress",
  pod: End,
  other: End,
  port: number,
  listener: End,
): boolean {
  // The policies apply only to pods of their own namespace.
  if ("address" in pod || pod.namespace !== undefined) return true;
  const ruling = policies.filter(
    ({ spec }) => spec?.policyTypes?.includes(direction) && selects(spec.podSelector ?? {}, pod.labels),
  );
  const rules = ruling.flatMap(({ spec }) =>
    direction === "Ingress"
      ? (spec?.ingress ?? []).map(({ from, ports }) => ({ peers: from, ports }))
      : (spec?.egress ?? []).map(({ to, ports }) => ({ peers: to, ports })),
  );
  return (
    ruling.length === 0 ||
    rules.some(
      ({ peers, ports }) =>
        (peers === undefined || peers.some((peer) => isPeer(peer, other))) &&
        (ports === undefined || ports.some((allowed) => isPort(allowed, port, listener))),
    )
  );
}

function isPeer({ ipBlock, namespaceSelector, podSelector }: INetworkPolicyPeer, end: End): boolean {
  if (ipBlock !== undefined) {
    if (!("address" in end)) return false;
    return holds([ipBlock.cidr], end.address) && !holds(ipBlock.except ?? [], end.address);
  }
  if ("address" in end) return false;
  const isItsNamespace =
    namespaceSelector === undefined
      ? end.namespace === undefined
      : end.namespace !== undefined &&
        selects(namespaceSelector, { "kubernetes.io/metadata.name": end.namespace });
  return isItsNamespace && selects(podSelector ?? {}, end.labels);
}

function isPort(
  { protocol = "TCP", port, endPort }: INetworkPolicyPort,
  asked: number,
  listener: End,
): boolean {
  if (protocol !== "TCP") return false;
  if (port === undefined) return true;
  if (typeof port === "string") return "labels" in listener && listener.ports?.[port] === asked;
  return endPort === undefined ? asked === port : port <= asked && asked <= endPort;
}

export function selects(
  { matchLabels, matchExpressions }: ILabelSelector,
  labels: Record<string, string>,
): boolean {
  return (
    Object.entries(matchLabels ?? {}).every(([key, value]) => labels[key] === value) &&
    (matchExpressions ?? []).every(({ key, operator, values }) => {
      if (operator !== "In") throw new Error(`a selector with ${operator} is not judged here`);
      return values?.includes(labels[key] ?? "") ?? false;
    })
  );
}

function holds(blocks: readonly string[], address: string): boolean {
  const list = new BlockList();
  for (const block of blocks) {
    const [network = "", bits] = block.split("/");
    list.addSubnet(network, Number(bits), isIPv6(network) ? "ipv6" : "ipv4");
  }
  return list.check(address, isIPv6(address) ? "ipv6" : "ipv4");
}
