import type { INetworkPolicy } from "kubernetes-models/networking.k8s.io/v1/NetworkPolicy";
import { isInNetworks, parseNetwork } from "../../shared/domain/address.ts";
import { environmentOf, findWorkloads, ofKind, type Resource, type Workload } from "./manifests.ts";
import { admits, type End } from "./network-policies.ts";

/** Addresses that no customer's URL may reach, whatever its host is called. */
const PRIVATE_ADDRESSES = [
  "0.0.0.1",
  "10.0.0.1",
  "10.96.0.1",
  "100.64.0.1",
  "100.100.100.200",
  "127.0.0.1",
  "168.63.129.16",
  "169.254.169.254",
  "172.31.255.254",
  "192.0.0.192",
  "192.168.1.1",
  "198.18.0.1",
  "224.0.0.1",
  "255.255.255.255",
  "::1",
  "::ffff:10.0.0.1",
  "64:ff9b::a00:1",
  "2002:a00:1::1",
  "fd00:ec2::254",
  "fe80::1",
  "ff02::1",
];
/** The laptop's addresses in kind and minikube, open to delivery nodes where private targets are allowed. */
const LAPTOP_ADDRESSES = ["172.31.255.254", "192.168.1.1"];
const PUBLIC_ADDRESSES = ["93.184.215.14", "2606:2800:21f:cb07::1"];
const POSTGRES = 5432;
const NATS = 4222;
/** The label of Postgres and NATS pods in the policies. */
const STORE = "jobwheel/store";
const postgres: End = { labels: { [STORE]: "postgres" } };
const nats: End = { labels: { [STORE]: "nats" } };
const SERVICES = ["gateway", "worker", "delivery"];

/** Judges the policies by examples of connections between two ends, each of which must be open or closed. */
export function judgeReach(resources: readonly Resource[]): string[] {
  const policies = ofKind<INetworkPolicy>(resources, "NetworkPolicy");
  const pods = findWorkloads(resources).filter(({ labels }) => labels[STORE] === undefined);
  const endOf = ({ labels, container }: Workload): End => ({
    labels,
    ports: Object.fromEntries(
      (container.ports ?? []).map(({ name, containerPort }) => [name ?? "", containerPort]),
    ),
  });
  const stranger: End = { labels: { app: "stranger" } };
  const abroad: End = { labels: { app: "stranger" }, namespace: "elsewhere" };
  const wrong: string[] = [];
  const expectWay = (what: string, from: End, to: End, port: number, isOpen: boolean) => {
    if (admits(policies, from, to, port) === isOpen) return;
    wrong.push(`${what} is ${isOpen ? "closed" : "open"}`);
  };

  const ways = findWaysIn(policies);
  for (const pod of pods) {
    const { name } = pod;
    const end = endOf(pod);
    const isDelivery = name === "delivery";
    expectWay(`${name} to Postgres`, end, postgres, POSTGRES, [...SERVICES, "migrate"].includes(name));
    expectWay(`${name} to NATS`, end, nats, NATS, SERVICES.includes(name));
    for (const address of PUBLIC_ADDRESSES) {
      expectWay(`${name} to the internet`, end, { address }, 443, isDelivery);
      expectWay(`${name} to the internet`, end, { address }, 8443, isDelivery);
    }
    for (const address of PRIVATE_ADDRESSES) {
      const isOpen = isDelivery && takesTarget(pod, resources, address);
      for (const port of [80, 443, POSTGRES])
        expectWay(`${name} to ${address}`, end, { address }, port, isOpen);
    }
    for (const other of pods.map(endOf)) {
      for (const port of [8080, 9090]) expectWay(`${name} to another pod`, end, other, port, false);
    }
    for (const port of pod.container.ports ?? []) {
      for (const from of [stranger, abroad])
        expectWay(`a stranger to ${name}`, from, end, port.containerPort, false);
    }
    const hasOps = pod.container.ports?.some((port) => port.name === "ops") ?? false;
    for (const { namespace, port } of ways) {
      const isForIt = port === "ops" ? hasOps : name === "gateway";
      expectWay(`${namespace} to ${name}`, { ...abroad, namespace }, end, PORTS[port], isForIt);
    }
  }
  for (const port of isServed(resources) ? (["ops", "http"] as const) : []) {
    if (!ways.some((way) => way.port === port)) wrong.push(`no namespace reaches ${port}`);
  }
  for (const from of [stranger, abroad]) {
    expectWay("a stranger to Postgres", from, postgres, POSTGRES, false);
    expectWay("a stranger to NATS", from, nats, NATS, false);
    expectWay("a stranger to NATS' routes", from, nats, 6222, false);
  }
  expectWay("a stranger to the internet", stranger, { address: "93.184.215.14" }, 443, false);
  return wrong;
}

/** Whether the service accepts jobs to the private address, so that delivery nodes must reach that address. */
function takesTarget(pod: Workload, resources: readonly Resource[], address: string): boolean {
  const environment = environmentOf(pod, resources, { podName: "", secretOf: () => "" });
  const texts = environment.ALLOWED_TARGET_NETWORKS?.split(",") ?? [];
  const networks = texts.flatMap((text) => parseNetwork(text) ?? []);
  const isTrial = environment.ALLOW_INSECURE_TARGETS === "true";
  return isInNetworks(address, networks) || (isTrial && LAPTOP_ADDRESSES.includes(address));
}

const PORTS = { http: 8080, ops: 9090 };

/** The other namespaces that may reach the services, those of the ingress and of Prometheus, with the port of each. */
function findWaysIn(policies: readonly INetworkPolicy[]): { namespace: string; port: keyof typeof PORTS }[] {
  return policies.flatMap(({ spec }) =>
    (spec?.ingress ?? []).flatMap(({ from = [], ports = [] }) =>
      from.flatMap(({ namespaceSelector }) => {
        const namespace = namespaceSelector?.matchLabels?.["kubernetes.io/metadata.name"];
        if (namespace === undefined) return [];
        return ports.flatMap(({ port }) => (port === "http" || port === "ops" ? [{ namespace, port }] : []));
      }),
    ),
  );
}

/** True if there is an Ingress. Then the ingress must reach the API, and Prometheus the services. */
function isServed(resources: readonly Resource[]): boolean {
  return resources.some(({ kind }) => kind === "Ingress");
}
