import { expect, test } from "bun:test";
import { findTargetFault, mayDial } from "../domain/target.ts";
import { readConfig } from "../platform/config.ts";
import { targetRulesOf } from "./service.ts";

test("the settings decide where the service may send to", () => {
  const rulesOf = (settings: Record<string, string>) =>
    targetRulesOf(
      readConfig({ HOST: "0.0.0.0", PUBLIC_URL: "https://jobs.lan", ...settings }, "standalone"),
      8080,
    );
  const closed = rulesOf({});
  const open = rulesOf({ ALLOWED_TARGET_NETWORKS: "10.0.0.0/8,127.0.0.0/8", ALLOWED_TARGET_HOSTS: ".lan" });
  for (const url of ["http://10.1.2.3/", "http://nas.lan/", "http://127.0.0.1:3000/"]) {
    expect([url, findTargetFault(url, closed) === null, findTargetFault(url, open)]).toEqual([
      url,
      false,
      null,
    ]);
  }
  for (const url of [
    "http://jobs.lan/",
    "http://127.0.0.1:8080/",
    "http://192.168.0.1/",
    "http://example.com/",
  ]) {
    expect([url, findTargetFault(url, open) === null]).toEqual([url, false]);
  }
  const to = { hostname: "example.com", port: 443 };
  expect([mayDial("10.1.2.3", to, closed), mayDial("10.1.2.3", to, open)]).toEqual([false, true]);
});

test("the address on which the service listens is no target where the operator has opened it, and other ports there are", () => {
  const open = {
    ALLOWED_TARGET_NETWORKS: "10.0.0.0/8,fd00::/16,fe80::/10",
    ALLOWED_TARGET_HOSTS: ".lan",
    ALLOW_INSECURE_TARGETS: "false",
  };
  for (const settings of [open, { ALLOW_INSECURE_TARGETS: "true" }]) {
    for (const [host, ...names] of [
      ["10.1.2.3", "10.1.2.3", "0xa010203", "[::ffff:10.1.2.3]"],
      ["::ffff:10.1.2.3", "10.1.2.3"],
      ["fd00:0:0::5", "[fd00::5]"],
      ["fe80::1%eth0", "[fe80::1]"],
      ["Jobs.lan", "jobs.lan", "jobs.lan."],
    ] as const) {
      const rules = targetRulesOf(readConfig({ HOST: host, ...settings }, "standalone"), 8080);
      for (const name of names) {
        const faultAt = (port: number) => findTargetFault(`http://${name}:${port}/`, rules);
        expect([host, name, faultAt(8080), faultAt(3000)]).toEqual([
          ...[host, name],
          ...["must not lead back to this service", null],
        ]);
      }
    }
    const rules = targetRulesOf(readConfig({ HOST: "10.1.2.3", ...settings }, "standalone"), 8080);
    const dials = (address: string, port: number) => mayDial(address, { hostname: "a.example", port }, rules);
    expect([dials("10.1.2.3", 8080), dials("::ffff:10.1.2.3", 8080)]).toEqual([false, false]);
    expect([dials("10.1.2.3", 3000), dials("10.1.2.4", 8080)]).toEqual([true, true]);
  }
});
