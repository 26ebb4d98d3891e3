import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { until } from "../../runtime-contract/until.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { startStopwatch } from "../../support/stopwatch.ts";
import { startTcpProxy, type TcpProxy } from "../../support/tcp-proxy.ts";

/** The API promises 503 within 2 s, and service again within 5 s of the database's return. */
const REFUSED_MS_MAX = 2_000;
const RECOVERED_MS_MAX = 5_000;
/** The client of this process may wait for a processor. A gateway that is too slow is so in each outage. */
const OUTAGES_MAX = 3;
const TEST_TIMEOUT_MS = 180_000;

let proxy: TcpProxy;
let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway({
    async via(databaseUrl) {
      const url = new URL(databaseUrl);
      proxy = await startTcpProxy({ host: url.hostname, port: Number(url.port) });
      url.hostname = "127.0.0.1";
      url.port = String(proxy.port);
      return url.href;
    },
  });
});
beforeEach(async () => {
  project = await gateway.addProject();
});
afterAll(async () => {
  proxy.thaw();
  await gateway.stop();
  await proxy.stop();
});

const create = () =>
  gateway.call("POST", "/v2/jobs", { key: project.production, body: { target_url: TARGET_URL } });
const requests: [string, () => ReturnType<typeof create>][] = [
  ["POST /v2/jobs", create],
  ["GET /v2/jobs", () => gateway.call("GET", "/v2/jobs", { key: project.production })],
  ["a key that is not known yet", () => gateway.call("GET", "/v2/project", { key: project.development })],
];

/** The longest time, in milliseconds, that a request took until it was refused. */
async function expectRefusals(): Promise<number> {
  const times = requests.map(async ([, request]) => {
    const stopwatch = startStopwatch();
    const answer = await request();
    const elapsedMs = stopwatch.stop();
    readRefusal(answer, "service_unavailable");
    expect(answer.headers.get("retry-after")).toBeNull();
    return elapsedMs;
  });
  return Math.max(...(await Promise.all(times)));
}

/** A slow machine may need more than one request until the gateway has a connection to Postgres. */
const untilServed = () => until(async () => (await create()).status === 201);

async function expectRecovery(): Promise<void> {
  const stopwatch = startStopwatch();
  try {
    for (const [name, request] of requests) {
      let isServed = false;
      while (!isServed && stopwatch.read() < RECOVERED_MS_MAX) {
        isServed = (await request()).status < 300;
      }
      expect(isServed, name).toBe(true);
    }
  } finally {
    stopwatch.stop();
  }
}

describe("a gateway without Postgres", () => {
  test.each<[string, () => void, () => void]>([
    ["Postgres is silent, and serves when it speaks again", () => proxy.freeze(), () => proxy.thaw()],
    ["connections to Postgres break, and serves when they hold", () => proxy.cut(), () => proxy.mend()],
  ])(
    "answers 503 on every route in time while %s",
    async (_, begin, end) => {
      await untilServed();
      let refusedMs = Number.POSITIVE_INFINITY;
      for (let outage = 0; outage < OUTAGES_MAX && refusedMs >= REFUSED_MS_MAX; outage++) {
        begin();
        try {
          refusedMs = await expectRefusals();
        } finally {
          end();
        }
        await expectRecovery();
      }
      expect(refusedMs).toBeLessThan(REFUSED_MS_MAX);
    },
    TEST_TIMEOUT_MS,
  );

  test("refuses a key that it knows to be invalid, and answers 503 to all else, since the request rate is checked first", async () => {
    await untilServed();
    proxy.freeze();
    try {
      readRefusal(await gateway.call("GET", "/v2/project"), "unauthorized");
      const answer = await gateway.call("GET", "/v2/no", { key: project.production });
      readRefusal(answer, "service_unavailable");
      expect(answer.headers.get("ratelimit-limit")).toBeNull();
    } finally {
      proxy.thaw();
    }
  });
});
