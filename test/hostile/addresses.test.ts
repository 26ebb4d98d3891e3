import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { findTargetFault, ownAddressOf } from "../../shared/domain/target.ts";
import { startTestGateway, type TestGateway } from "../support/gateway.ts";
import {
  OWN_URL,
  PUBLIC_FOUR,
  PUBLIC_SIX,
  REFUSED_HOSTS,
  REFUSED_URLS,
  SPECIAL_ADDRESSES,
} from "./refused-addresses.ts";
import type { Dialling } from "./refused-dialling.ts";

setDefaultTimeout(120_000);

const RULES = { allowInsecure: false, own: [ownAddressOf(OWN_URL)] };
const OWN_HOST = /jobwheel\.example/i;
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
