import { expect, test } from "bun:test";
import { parseNetwork } from "./address.ts";
import { findTargetFault, mayDial, ownAddressOf, parseOpenedHost, type TargetRules } from "./target.ts";

const strict: TargetRules = { allowInsecure: false, own: [ownAddressOf("https://api.jobwheel.example/")] };
const insecure: TargetRules = { allowInsecure: true, own: [ownAddressOf("http://0.0.0.0:8080")] };

test("public https URLs pass, on any port", () => {
  const good = [
    "https://example.com",
    "https://example.com./hook?a=b#c",
    "HTTPS://EXAMPLE.COM/",
    "https://example.com:8443/",
    "https://example.com:1",
    "https://8.8.8.8/",
    "https://[2606:4700::1111]:444/",
    "https://例え.テスト/",
    "https://a_b.example.com/",
    "https://notlocalhost.com/",
    "https://local.example.com/",
    "https://test.example.com/",
    "https://svc.corp.example/",
    "https://example.homes/",
    "https://example.com/@me?x=a@b",
    `https://example.com/${"a".repeat(2_048 - 20)}`,
    // 2,048 characters, each of them two units.
    `https://example.com/${"😀".repeat(2_048 - 20)}`,
  ];
  for (const url of good) expect([url, findTargetFault(url, strict)]).toEqual([url, null]);
});

test("a target other than an https URL of a public host is refused", () => {
  const bad = [
    "",
    "example.com",
    "/hook",
    "http://example.com/",
    "ftp://example.com/",
    "javascript:alert(1)",
    "https:example.com",
    "https:///example.com",
    "https:\\\\example.com",
    "https://example.com\\@evil.com",
    "https://",
    " https://example.com",
    "https://example.com ",
    "https://exa\tmple.com",
    "https://example.com/a b",
    "https://example.com/\u0000",
    "https://example.com/\ud800",
    "https://user:password@example.com/",
    "https://user@example.com/",
    "https://@example.com/",
    "https://:@example.com/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://a..b/",
    "https://.example.com/",
    "https://example.com../",
    `https://${"a".repeat(64)}.com/`,
    `https://${"a.".repeat(127)}com/`,
    `https://example.com/${"a".repeat(2_049 - 20)}`,
    // Names that are not public.
    "https://localhost/",
    "https://LOCALHOST./",
    "https://ⓛocalhost/",
    "https://a.localhost/",
    "https://intranet/",
    "https://intranet./",
    "https://printer.local/",
    "https://metadata.google.internal/",
    "https://metadata.google.internal./",
    "https://abc.onion/",
    "https://postgres-rw.jobwheel.svc/",
    "https://postgres-rw.jobwheel.svc.cluster.local./",
    "https://1.0.0.10.in-addr.arpa/",
    "https://router.home.arpa/",
    "https://nas.lan/",
    "https://git.corp/",
    "https://tv.HOME/",
    "https://wiki.intranet/",
    "https://a.test/",
    // Addresses, in the spellings that URL parsers take for IPv4.
    "https://127.0.0.1/",
    "https://127.1/",
    "https://127.0.0.1./",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://①②⑦.0.0.1/",
    "https://%31%32%37.0.0.1/",
    "https://10.0.0.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:8.8.8.8]/",
    "https://[fe80::1]/",
    "https://[fd00:ec2::254]/",
    // The service itself, on any port.
    "https://api.jobwheel.example/v2/jobs",
    "https://API.jobwheel.example.:8443/",
  ];
  for (const url of bad) expect([url, findTargetFault(url, strict) !== null]).toEqual([url, true]);
});

test("insecure targets may be http and private, but never the gateway itself", () => {
  const good = [
    "http://127.0.0.1:9090/echo",
    "http://localhost:3000",
    "http://receiver/",
    "http://10.0.0.1/",
    "https://example.com",
    "http://example.com:8080/",
    "http://[::1]:9090/",
  ];
  for (const url of good) expect([url, findTargetFault(url, insecure)]).toEqual([url, null]);
  const bad = [
    "http://127.0.0.1:8080/",
    "http://127.8.8.8:8080/",
    "http://localhost:8080/",
    "https://localhost:8080/",
    "http://a.localhost.:8080/",
    "http://0.0.0.0:8080/",
    "http://[::1]:8080/",
    "http://[::ffff:127.0.0.1]:8080/",
    "http://[::]:8080/",
    "http://user@localhost:3000/",
    "ftp://localhost/",
  ];
  for (const url of bad) expect([url, findTargetFault(url, insecure) !== null]).toEqual([url, true]);
});

test("the address that is dialled is checked again", () => {
  const dials = (address: string, port: number, rules: TargetRules) =>
    mayDial(address, { hostname: "a.example", port }, rules);
  expect(dials("10.0.0.1", 443, strict)).toBe(false);
  expect(dials("8.8.8.8", 443, strict)).toBe(true);
  expect(dials("10.0.0.1", 80, insecure)).toBe(true);
  expect(dials("127.0.0.1", 9090, insecure)).toBe(true);
  expect(dials("127.0.0.1", 8080, insecure)).toBe(false);
  expect(dials("::1", 8080, insecure)).toBe(false);
  expect(dials("::ffff:7f00:1", 8080, insecure)).toBe(false);
});

/** As the settings make them: `own` is PUBLIC_URL and the gateway's port on this machine. */
function opening(networks: string, hosts = ""): TargetRules {
  const words = (text: string) => text.split(" ").filter((word) => word !== "");
  return {
    allowInsecure: false,
    own: [
      ownAddressOf("https://jobs.own.lan/"),
      ...["127.0.0.1", "localhost", "[::1]"].map((hostname) => ({ hostname, port: 8080 })),
    ],
    opened: {
      networks: words(networks).map((text) => parseNetwork(text) ?? expect.unreachable(text)),
      hosts: words(hosts).map((text) => parseOpenedHost(text) ?? expect.unreachable(text)),
    },
  };
}
const opened = opening("10.0.0.0/8 fd00::/16 127.0.0.0/8", "receiver nas.lan .own.lan");

test("http and private hosts are targets where the operator opens them", () => {
  const good = [
    "http://10.1.2.3/hook",
    "https://10.1.2.3/hook",
    "http://0xa010203:8080/",
    "http://[fd00::1]/",
    "http://[::ffff:10.1.2.3]/",
    "http://127.0.0.1:3000/",
    "http://receiver/",
    "https://receiver./",
    "http://NAS.lan:8080/",
    "http://git.own.lan/",
    "https://a.b.own.lan/",
    "https://example.com/",
  ];
  for (const url of good) expect([url, findTargetFault(url, opened)]).toEqual([url, null]);
});

test("what the operator does not open stays refused", () => {
  const bad = [
    "http://example.com/",
    "http://8.8.8.8/",
    "http://11.0.0.1/",
    "https://192.168.0.1/",
    "https://169.254.169.254/",
    "https://[fd01::1]/",
    "https://[::ffff:192.168.0.1]/",
    "https://[::1]/",
    "https://localhost/",
    "https://own.lan/",
    "https://xnas.lan/",
    "https://a.nas.lan/",
    "https://other.lan/",
    "http://git.own.lan.example.com/",
    "http://user@nas.lan/",
    "ftp://nas.lan/",
    "http://nas.lan:0/",
    "http://.own.lan/",
  ];
  for (const url of bad) expect([url, findTargetFault(url, opened) !== null]).toEqual([url, true]);
});

test("the service's own hosts stay refused where the operator opens their network", () => {
  const wide = opening("0.0.0.0/0 ::/0", ".own.lan localhost");
  for (const url of [
    "https://jobs.own.lan/",
    "http://jobs.own.lan:3000/",
    "http://127.0.0.1:8080/",
    "http://127.1.1.1:8080/",
    "http://[::1]:8080/",
    "http://[::ffff:127.0.0.1]:8080/",
    "http://0.0.0.0:8080/",
    "http://localhost:8080/",
  ]) {
    expect([url, findTargetFault(url, wide)]).toEqual([url, "must not lead back to this service"]);
  }
  for (const address of ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0"]) {
    expect([address, mayDial(address, { hostname: "a.example", port: 8080 }, wide)]).toEqual([
      address,
      false,
    ]);
    expect([address, mayDial(address, { hostname: "a.example", port: 3000 }, wide)]).toEqual([address, true]);
  }
  const literal = { ...wide, own: [ownAddressOf("https://10.0.0.5/")] };
  for (const host of ["10.0.0.5", "[::ffff:10.0.0.5]"]) {
    expect(findTargetFault(`http://${host}:3000/`, literal)).toBe("must not lead back to this service");
  }
  expect(mayDial("10.0.0.5", { hostname: "a.example", port: 3000 }, literal)).toBe(false);
});

test("a name leads where its addresses are opened, and a listed one to any private address", () => {
  const to = (hostname: string, address: string) => mayDial(address, { hostname, port: 443 }, opened);
  for (const address of ["10.9.9.9", "fd00::9", "127.0.0.9", "::ffff:10.9.9.9", "8.8.8.8"]) {
    expect([address, to("example.com", address)]).toEqual([address, true]);
  }
  for (const address of ["192.168.0.1", "::1", "fd01::1", "169.254.169.254", "224.0.0.1", "::ffff:8.8.8.8"]) {
    expect([address, to("example.com", address)]).toEqual([address, false]);
  }
  for (const address of ["192.168.0.1", "172.16.0.1", "::1", "127.0.0.1", "fd01::1", "::ffff:192.168.0.1"]) {
    expect([address, to("nas.lan", address)]).toEqual([address, true]);
    expect([address, to("git.own.lan.", address)]).toEqual([address, true]);
  }
  const never =
    "169.254.169.254 169.254.0.1 fe80::1 fd00:ec2::254 fd20:ce::254 100.100.100.200 ::ffff:169.254.169.254";
  for (const address of [...never.split(" "), "100.64.0.1", "224.0.0.1", "0.0.0.0", "203.0.113.1"]) {
    expect([address, to("nas.lan", address)]).toEqual([address, false]);
  }
});

test("a host is listed by its name, or with all below a name", () => {
  const good = [
    "receiver",
    "NAS.lan",
    ".own.lan",
    ".lan",
    "a_b.lan",
    "xn--fsq.lan",
    "10.example",
    "_dmarc.lan",
  ];
  for (const text of good) expect(parseOpenedHost(text)).toBe(text.toLowerCase());
  const bad = [
    ["", ".", "a b", "a.lan:80", "https://a.lan", "a.lan/", "*.lan", "a..lan", "a.lan.", "..lan", "-a.lan"],
    ["10.0.0.1", "10.0.0.0/8", "[::1]", "::1", ".1", "a.0x1", "ä.lan", "user@a.lan", `${"a".repeat(64)}.lan`],
    [`${"a.".repeat(126)}lan`],
  ];
  for (const text of bad.flat()) expect([text, parseOpenedHost(text)]).toEqual([text, null]);
});
