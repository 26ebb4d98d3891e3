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
