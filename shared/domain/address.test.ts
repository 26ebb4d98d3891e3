import { expect, test } from "bun:test";
import { isInNetworks, isPrivateAddress, isPublicAddress, type Network, parseNetwork } from "./address.ts";

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

test("a network is a CIDR without bits behind its prefix", () => {
  const good = [
    "10.0.0.0/8",
    "0.0.0.0/0",
    "192.168.1.7/32",
    "fd00::/8",
    "::/0",
    "FE80::/10",
    "fd00:ec2::254/128",
  ];
  for (const text of good) expect([text, parseNetwork(text) !== null]).toEqual([text, true]);
  const bad = [
    ["", "10.0.0.1/8", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8.0", "10.0.0/8", "10.0.0.0/ 8"],
    ["10.0.0.0/08", "010.0.0.0/8", "0xa.0.0.0/8", "10.0.0.0/8/8", "/8", "localhost/8", "10.0.0.0/255.0.0.0"],
    [
      "fd00::1/8",
      "fd00::/129",
      "fd00::",
      "[fd00::]/8",
      "fe80::%eth0/64",
      "::ffff:10.0.0.0/104",
      "::ffff:0:0/96",
    ],
  ];
  for (const text of bad.flat()) expect([text, parseNetwork(text)]).toEqual([text, null]);
});

function networks(text: string): Network[] {
  return text.split(" ").map((cidr) => parseNetwork(cidr) ?? expect.unreachable(cidr));
}

test("a network opens its addresses, IPv4-mapped ones as IPv4", () => {
  for (const address of ["10.0.0.0", "10.255.255.255", "::ffff:10.0.0.1", "::ffff:a00:1"]) {
    expect([address, isInNetworks(address, networks("192.168.0.0/16 10.0.0.0/8"))]).toEqual([address, true]);
  }
  for (const address of [
    "9.255.255.255",
    "11.0.0.0",
    "::10.0.0.1",
    "010.0.0.1",
    "10.1",
    "10.0.0.1%eth0",
    "",
    "a.lan",
  ]) {
    expect([address, isInNetworks(address, networks("10.0.0.0/8"))]).toEqual([address, false]);
  }
  for (const address of [
    "127.0.0.1",
    "0.0.0.0",
    "192.168.0.1",
    "224.0.0.1",
    "100.64.0.1",
    "255.255.255.255",
  ]) {
    expect([address, isInNetworks(address, networks("0.0.0.0/0"))]).toEqual([address, true]);
    expect([address, isInNetworks(address, networks("::/0"))]).toEqual([address, false]);
  }
  expect(isInNetworks("fd00::1", networks("0.0.0.0/0"))).toBe(false);
  expect(isInNetworks("fe80::1%eth0", networks("fe80::/10"))).toBe(false);
});

test("cloud metadata is opened by a network of its own only", () => {
  const wide = networks(
    "0.0.0.0/0 ::/0 169.0.0.0/8 169.254.0.0/15 fe00::/7 fe80::/9 100.64.0.0/10 fd00::/8 fd00::/63",
  );
  const own = {
    "169.254.169.254": "169.254.0.0/16 169.254.169.254/32",
    "::ffff:169.254.169.254": "169.254.0.0/16",
    "fe80::1": "fe80::/10 fe80::/64",
    "100.100.100.200": "100.100.0.0/16 100.100.100.200/32",
    "168.63.129.16": "168.63.129.16/32",
    "192.0.0.192": "192.0.0.0/24",
    "fd00:ec2::254": "fd00:ec2::/64 fd00:ec2::254/128",
    "fd20:ce::254": "fd20:ce::/64",
  };
  for (const [address, cidrs] of Object.entries(own)) {
    expect([address, isInNetworks(address, wide)]).toEqual([address, false]);
    expect([address, isPrivateAddress(address)]).toEqual([address, false]);
    for (const network of networks(cidrs)) {
      expect([address, cidrs, isInNetworks(address, [network])]).toEqual([address, cidrs, true]);
    }
  }
});

test("no network opens an address that stands for one of cloud metadata", () => {
  const standing =
    "64:ff9b::a9fe:a9fe 64:ff9b:1::a9fe:a9fe 2002:a9fe:a9fe::1 ::169.254.169.254 ::ffff:0:a9fe:a9fe";
  for (const address of standing.split(" ")) {
    expect([address, isInNetworks(address, networks("::/0 64:ff9b::/96 2002::/16"))]).toEqual([
      address,
      false,
    ]);
  }
  expect(isInNetworks("64:ff9b::a00:1", networks("64:ff9b::/96"))).toBe(true);
});
