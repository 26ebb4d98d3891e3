import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { type Network, parseNetwork } from "../../shared/domain/address.ts";
import { findTargetFault, ownAddressOf } from "../../shared/domain/target.ts";
import { readRefusal, startTestGateway, type TestGateway } from "../support/gateway.ts";
import {
  OWN_URL,
  PUBLIC_FOUR,
  PUBLIC_SIX,
  REFUSED_HOSTS,
  REFUSED_URLS,
  SPECIAL_ADDRESSES,
} from "./refused-addresses.ts";
import type { Dialling } from "./refused-dialling.ts";

const RULES = { allowInsecure: false, own: [ownAddressOf(OWN_URL)] };
const OWN_HOST = /jobwheel\.example/i;
/** Spellings of addresses in 10.0.0.0/8 among the refused ones. */
const OPENED_HOSTS = new Set(
  "10.0.0.1 10.1 0xa000001 012.0.0.1 167772161 10.255.255.255 [::FFFF:10.0.0.1]".split(" "),
);
/** The addresses of the canaries, in a network that only this test has. */
const CANARY_ADDRESSES = [
  ...[PUBLIC_FOUR, PUBLIC_SIX, "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1"],
  ...[
    "169.254.169.254",
    "169.254.170.2",
    "100.64.0.1",
    "198.18.0.1",
    "fd00::1",
    "fd00:ec2::254",
    "64:ff9b::7f00:1",
  ],
];

describe("creation", () => {
  let gateway: TestGateway;
  beforeAll(async () => {
    gateway = await startTestGateway();
  });
  afterAll(() => gateway.stop());

  const urls = [
    ...REFUSED_HOSTS.filter((host) => !OWN_HOST.test(host)).map((host) => `https://${host}/`),
    ...REFUSED_HOSTS.filter((host) => !OWN_HOST.test(host)).map((host) => `https://${host}:8443/a?b#c`),
    ...REFUSED_URLS,
  ];

  test(`refuses each of ${urls.length} URLs as written, and creates nothing`, async () => {
    expect(REFUSED_HOSTS.length + REFUSED_URLS.length).toBeGreaterThanOrEqual(150);
    const project = await gateway.addProject("scale");
    const before = await gateway.countRows();
    for (const url of urls) {
      const { status, text } = await gateway.call("POST", "/v2/jobs", {
        key: project.production,
        body: { target_url: url },
      });
      expect([url, status, JSON.parse(text).error?.code, JSON.parse(text).error?.param]).toEqual([
        url,
        400,
        "invalid_request",
        "target_url",
      ]);
    }
    expect(await gateway.countRows()).toEqual(before);
  });

  test("refuses the service's own host in every spelling and on every port", () => {
    const own = REFUSED_HOSTS.filter((host) => OWN_HOST.test(host));
    expect(own.length).toBeGreaterThanOrEqual(4);
    for (const url of own.flatMap((host) => [`https://${host}/`, `https://${host}:8443/x`])) {
      expect([url, findTargetFault(url, RULES)]).toEqual([url, "must not lead back to this service"]);
    }
  });
});

describe("creation where the operator opens private networks", () => {
  let gateway: TestGateway;
  let mate: { port: number; stop(): Promise<void> };
  beforeAll(async () => {
    gateway = await startTestGateway();
    const networks = ["10.0.0.0/8", "fd00:7::/32"].map((text) => parseNetwork(text) as Network);
    const opened = { networks, hosts: ["receiver.lan", ".jobs.lan"] };
    mate = await gateway.startMate({
      targets: { allowInsecure: false, own: [ownAddressOf(OWN_URL)], opened },
    });
  });
  afterAll(async () => {
    await mate.stop();
    await gateway.stop();
  });

  const KINDS = [
    ["/v2/jobs", "target_url", {}],
    ["/v2/schedules", "target_url", { cron: "0 0 1 1 *" }],
    ["/v2/webhooks", "url", { events: ["job.failed"] }],
  ] as const;

  test.each(KINDS)("POST %s takes them, over http too", async (path, param, fields) => {
    const project = await gateway.addProject("scale");
    const urls =
      "http://10.2.3.4/x https://10.2.3.4/x http://[fd00:7::1]:8080/ http://receiver.lan/ http://a.jobs.lan:81/";
    for (const [index, url] of urls.split(" ").entries()) {
      const body = { ...fields, [param]: url, ...(path === "/v2/schedules" && { name: `at ${index}` }) };
      const made = await gateway.call("POST", path, { key: project.production, body, port: mate.port });
      expect([url, made.status, JSON.parse(made.text)[param]]).toEqual([url, 201, url]);
      // The gateway without opened networks and hosts refuses the same URL.
      const refused = await gateway.call("POST", path, { key: project.production, body });
      expect([url, readRefusal(refused, "invalid_request", param).param]).toEqual([url, param]);
    }
  });

  test.each(KINDS)("POST %s takes nothing else", async (path, param, fields) => {
    const project = await gateway.addProject("scale");
    const before = await gateway.countRows();
    const isOpen = (host: string) => OPENED_HOSTS.has(host);
    const refused = REFUSED_HOSTS.filter((host) => !isOpen(host)).flatMap((host) => [
      `https://${host}/`,
      `http://${host}/`,
    ]);
    const others = ["http://example.com/", "http://8.8.8.8/", "http://jobs.lan/", "http://b.receiver.lan/"];
    for (const url of [...refused, ...others, ...REFUSED_URLS]) {
      const answer = await gateway.call("POST", path, {
        key: project.production,
        body: { ...fields, [param]: url, ...(path === "/v2/schedules" && { name: "a" }) },
        port: mate.port,
      });
      expect([url, answer.status, JSON.parse(answer.text).error?.param]).toEqual([url, 400, param]);
    }
    expect(await gateway.countRows()).toEqual(before);
  });
});

describe("dialling", () => {
  const network = enterNetwork();
  let dialling: Dialling;
  beforeAll(() => {
    dialling = dialEverything(network);
  });

  test("refuses every forbidden host, and every forbidden address of a name", () => {
    expect(dialling.notRefused).toEqual([]);
    expect(dialling.dialled).toBe(REFUSED_HOSTS.length + 3 * SPECIAL_ADDRESSES.length);
  });

  test("sends no byte to loopback, link-local or private addresses", () => {
    expect(Object.keys(dialling.heard).filter((address) => address !== PUBLIC_FOUR)).toEqual([]);
  });

  test.skipIf(network === null)(
    "asks for a name once for each connection, and checks the address that it dials: rebinding is useless",
    () => {
      expect(dialling.rebinding.lookups).toBe(2);
      expect(dialling.rebinding.messages[0]).not.toMatch(/may not be dialled|could not be resolved/);
      expect(dialling.rebinding.messages[1]).toBe(
        "The name rebinding.example could not be resolved (ENOTFOUND).",
      );
    },
  );

  test("does not follow a redirect to the metadata service", () => {
    expect(dialling.redirect).toEqual({ status: "302", heard: {} });
  });

  test.skipIf(network === null)(
    "was watched by canaries that do receive connections, at public addresses too",
    () => {
      expect(dialling.control).toEqual({
        [PUBLIC_FOUR]: 1,
        [PUBLIC_SIX]: 1,
        "127.0.0.1": 1,
        "10.0.0.1": 1,
        "169.254.169.254": 1,
        "fd00::1": 1,
      });
    },
  );
});

/** The command that gives a process its own network; null where the system forbids it. */
function enterNetwork(): string[] | null {
  const command = ["unshare", "--map-root-user", "--net"];
  const tried = spawnSync(command[0] ?? "", [...command.slice(1), "ip", "link", "set", "lo", "up"]);
  return tried.status === 0 ? command : null;
}

function dialEverything(network: string[] | null): Dialling {
  const script = join(import.meta.dir, "refused-dialling.ts");
  const addresses = CANARY_ADDRESSES.map((address) => `ip address add ${address} dev lo`).join(" && ");
  const command =
    network === null
      ? [process.execPath, script, "0"]
      : [
          ...network,
          "sh",
          "-c",
          `ip link set lo up && ${addresses} && exec "$0" "$@"`,
          process.execPath,
          script,
          "443",
        ];
  const { stdout, stderr } = spawnSync(command[0] ?? "", command.slice(1), {
    encoding: "utf8",
    timeout: 100_000,
  });
  if (stdout === "") throw new Error(`nothing was dialled: ${stderr}`);
  return JSON.parse(stdout);
}
