/**
 * The hosts and addresses that no request may reach, in every spelling that a URL parser accepts, and in every answer
 * that a name may have.
 */

/** The service's own URL. */
export const OWN_URL = "https://api.jobwheel.example/";

const LOOPBACK =
  "127.0.0.1 127.1 127.0.1 127.0.0.1. 127.255.255.254 2130706433 017700000001 0x7f000001 0x7F.0x0.0x0.0x1 0x7f.1 " +
  "0177.0.0.1 0177.1 00000177.0.0.1 0x000000007f.1 127.0x0.0.01 0 0.0.0.0 0x0 00.00.00.00 0.1.2.3 %31%32%37.0.0.1 " +
  "127.0.0.%31 127%2e0%2e0%2e1 127。0。0。1 127．0．0．1 127｡0｡0｡1 １２７.０.０.１ ①②⑦.0.0.1 𝟏𝟐𝟕.𝟎.𝟎.𝟏 ⓪.⓪.⓪.⓪ ⁰.⁰.⁰.⁰ ０x7f.1";
const PRIVATE =
  "10.0.0.1 10.1 0xa000001 012.0.0.1 167772161 10.255.255.255 172.16.0.1 172.31.255.255 0xac.0x10.0.1 2886729729 " +
  "192.168.0.1 192.168.1 3232235521 0xc0a80001 0300.0250.0.1 １９２.１６８.０.１ 100.64.0.1 100.127.255.255";
const METADATA =
  "169.254.169.254 169.254.43518 169.16689662 2852039166 0xa9fea9fe 025177524776 0251.0376.0251.0376 0xA9.0xFE.0xA9.0xFE " +
  "169.254.169.254. １６９.２５４.１６９.２５４ 169.254.170.2 169.254.0.1 100.100.100.200 192.0.0.192 168.63.129.16";
const RESERVED =
  "192.0.0.8 192.0.2.1 198.51.100.1 203.0.113.1 198.18.0.1 198.19.255.255 192.88.99.1 224.0.0.1 239.255.255.250 " +
  "240.0.0.1 255.255.255.255 4294967295 0xffffffff";
const SIX =
  "[::1] [0:0:0:0:0:0:0:1] [0000::0001] [::] [::127.0.0.1] [::7f00:1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::FFFF:10.0.0.1] " +
  "[0:0:0:0:0:ffff:a9fe:a9fe] [::ffff:169.254.169.254] [::ffff:8.8.8.8] [::ffff:0:127.0.0.1] [64:ff9b::127.0.0.1] " +
  "[64:ff9b::a9fe:a9fe] [64:ff9b::8.8.8.8] [64:ff9b:1::1] [2002:7f00:1::] [2002:a9fe:a9fe::1] [2002:808:808::] [2001::1] " +
  "[2001:0:7f00:1::] [2001:2::1] [2001:10::1] [2001:20::1] [2001:db8::1] [3fff::1] [100::1] [5f00::1] [4000::1] [fc00::1] " +
  "[fd00::1] [fd00:ec2::254] [fd20:ce::254] [FE80::1] [fe80::1%25eth0] [fe80::1%eth0] [::1%25lo] [fec0::1] [ff02::1] [ff0e::1]";
const NAMES =
  "localhost LOCALHOST localhost. a.localhost A.LOCALHOST. lｏcalhost ⓛocalhost lo\u00adcalhost xn--localhost- intranet router metadata " +
  "postgres com com. printer.local PRINTER.LOCAL. printer.ｌｏｃａｌ metadata.google.internal metadata.google.internal. " +
  "METADATA.GOOGLE.INTERNAL instance-data.ec2.internal db.internal db。internal abc.onion ABC.ONION. a..local .local " +
  "postgres-rw.jobwheel.svc Postgres-RW.jobwheel.SVC. api.default.svc.cluster.local 1.0.0.10.in-addr.arpa home.arpa " +
  "nas.lan NAS.LAN. git.corp tv.home wiki.intranet wiki.ｉntranet a.test A.TEST. " +
  "example.com.. api.jobwheel.example API.JOBWHEEL.EXAMPLE api.jobwheel.example. ａpi.jobwheel.example";

/** Hosts that are refused by their spelling alone. */
export const REFUSED_HOSTS = [LOOPBACK, PRIVATE, METADATA, RESERVED, SIX, NAMES].flatMap((text) =>
  text.split(" "),
);

/** URLs that are refused by their spelling alone: two readers could disagree on them, or they have another scheme. */
export const REFUSED_URLS = [
  "https://user@127.0.0.1/",
  "https://example.com@127.0.0.1/",
  "https://example.com:443@169.254.169.254/",
  "https://127.0.0.1@example.com/",
  "https://user:password@example.com/",
  "https://@127.0.0.1/",
  "https://:@127.0.0.1/",
  "https://example.com%40127.0.0.1/",
  "https://example.com\\@127.0.0.1/",
  "https://127.0.0.1\\.example.com/",
  "https://127.0.0.1\\@example.com/",
  "https:\\\\127.0.0.1/",
  "https:/\\127.0.0.1/",
  "https:127.0.0.1",
  "https:/127.0.0.1/",
  "https:///127.0.0.1/",
  "https://///127.0.0.1/",
  "//127.0.0.1/",
  "127.0.0.1",
  "127.0.0.1:443",
  "https://127.0.0.1#@example.com/",
  "https://127.0.0.1?@example.com/",
  "https://127.0.0.1:443:80/",
  "https://127.0.0.1%00.example.com/",
  "https://127.0.0.1%2f.example.com/",
  "https://127.0.0.1%23.example.com/",
  "https://127.0.\t0.1/",
  "https://127.0.0.1\t/",
  "ht\ntps://127.0.0.1/",
  "https://exam\r\nple.com/",
  " https://example.com/",
  "https://example.com/ ",
  "https://example.com/a b",
  "https://example.com/\u0000",
  "https://example.com\u00a0/",
  "https://example.com:0/",
  "https://example.com:65536/",
  "https://example.com:-1/",
  "https://example.com:0x1bb/",
  "https://[::1",
  "https://::1/",
  "https://[::1]:0/",
  "https://[127.0.0.1]/",
  "https://[::ffff:127.0.0.1.]/",
  "https://256.256.256.256/",
  "https://1.2.3.4.5/",
  "https://0x/",
  "https://127.0.0.0x/",
  "http://example.com/",
  "HTTP://example.com/",
  "http://127.0.0.1/",
  "ftp://example.com/",
  "gopher://127.0.0.1:5432/_",
  "dict://127.0.0.1:11211/",
  "file:///etc/passwd",
  "javascript:alert(1)",
  "data:text/plain,x",
  "ws://127.0.0.1/",
  "wss://127.0.0.1/",
  "blob:https://127.0.0.1/",
  "unix:/var/run/docker.sock",
];

/** Addresses of every special range; each is also tried as the answer to a name. */
export const SPECIAL_ADDRESSES = (
  "127.0.0.1 127.0.0.2 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 " +
  "169.254.169.254 169.254.170.2 100.64.0.1 100.100.100.200 192.0.0.8 192.0.0.192 192.0.2.1 198.51.100.1 203.0.113.1 " +
  "198.18.0.1 192.88.99.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 168.63.129.16 " +
  "::1 :: ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe " +
  "64:ff9b:1::1 2002:7f00:1:: 2001::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 3fff::1 100::1 5f00::1 4000::1 fc00::1 " +
  "fd00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1"
).split(" ");

/** Public addresses on the loopback interface of the test's own network, which show that canaries receive connections. */
export const PUBLIC_FOUR = "8.8.8.8";
export const PUBLIC_SIX = "2606:4700::1111";
