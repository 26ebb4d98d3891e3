import { expect, test } from "bun:test";
import { findTargetFault, isPublicAddress, mayDial, ownAddressOf, type TargetRules } from "./target.ts";

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

test("only addresses that any host on the internet could have are public", () => {
  const publicOnes = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.0.1", "172.32.0.1"];
  const publicSix = ["2606:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001::1"];
  for (const address of [...publicOnes, ...publicSix]) {
    expect([address, isPublicAddress(address)]).toEqual([address, true]);
  }
  const others = [
    "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.0 100.127.255.255 127.0.0.1 127.255.255.255 169.254.169.254 172.16.0.1",
    "172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255",
    "168.63.129.16 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255",
    ":: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::7f00:1",
    "64:ff9b::808:808 64:ff9b:1::1 100::1 2001::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::",
    "2002:808:808::1 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1",
    "2606:4700::1111%eth0 127.1 0x7f000001 010.0.0.1 [::1] localhost 1.2.3",
  ];
  for (const address of ["", ...others.join(" ").split(" ")]) {
    expect([address, isPublicAddress(address)]).toEqual([address, false]);
  }
});

test("the address that is dialled is checked again", () => {
  expect(mayDial("10.0.0.1", 443, strict)).toBe(false);
  expect(mayDial("8.8.8.8", 443, strict)).toBe(true);
  expect(mayDial("10.0.0.1", 80, insecure)).toBe(true);
  expect(mayDial("127.0.0.1", 9090, insecure)).toBe(true);
  expect(mayDial("127.0.0.1", 8080, insecure)).toBe(false);
  expect(mayDial("::1", 8080, insecure)).toBe(false);
  expect(mayDial("::ffff:7f00:1", 8080, insecure)).toBe(false);
});
