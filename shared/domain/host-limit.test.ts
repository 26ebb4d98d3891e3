import { describe, expect, test } from "bun:test";
import { readHost } from "./host-limit.ts";
import { hostOfTarget } from "./target.ts";

describe("a host as an operator writes it", () => {
  test.each([
    ["api.example.com", "https://api.example.com/hook"],
    ["API.Example.COM.", "https://api.example.com:8443/"],
    ["münchen.example", "https://xn--mnchen-3ya.example/"],
    ["127.1", "http://127.0.0.1:9000/"],
    ["[2001:DB8:0::1]", "https://[2001:db8::1]/"],
  ])("%p is that of the target %p", (text, url) => {
    expect(readHost(text)).toBe(hostOfTarget(url));
  });

  test.each([
    "",
    ".",
    "https://example.com",
    "example.com/",
    "example.com:443",
    "[::1]:80",
    "a b",
    "u@example.com",
    "[::1",
  ])("%p is none", (text) => {
    expect(readHost(text)).toBeNull();
  });
});
