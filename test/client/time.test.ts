import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import {
  type Client,
  type ClientOptions,
  ConnectionError,
  createClient,
  TimeoutError,
} from "../../shared/client/index.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";
import { type Fault, type FaultyProxy, startFaultyProxy } from "./faulty-proxy.ts";

let gateway: TestGateway;
let proxy: FaultyProxy;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  proxy = await startFaultyProxy(gateway);
  project = await gateway.addProject();
  return () => proxy.stop();
});

const clientWith = (options: Partial<ClientOptions>): Client =>
  createClient({ baseUrl: proxy.url, apiKey: project.production, ...options });
const failureOf = (call: Promise<unknown>) =>
  call.then(
    () => "nothing was thrown",
    (error: unknown) => error,
  );
const fields = { target_url: TARGET_URL };
const SHORT_MS = 60;
/** Most requests are answered in this time, also on a slow machine. */
const ENOUGH_MS = 1_000;
/** A time that is longer than any test may take. */
const LONG_MS = 3_600_000;

describe("a try of the client", () => {
  test.each<Fault>(["request stuck", "answer stuck", "answer stuck halfway"])(
    "ends after its time and is made again: %s",
    async (fault) => {
      proxy.faults.push(fault);
      const client = clientWith({ timeoutMs: ENOUGH_MS, retriesMax: 50, random: () => 0 });
      const { result, answer } = await client.jobs.create(fields).withAnswer();
      if (fault !== "request stuck") expect(answer.isReplayed).toBe(true);
      const { data } = await client.jobs.list();
      expect(data.map(({ id }) => id)).toEqual([result.id]);
      expect(new Set(proxy.valuesOf("idempotency-key").slice(0, 2)).size).toBe(1);
    },
  );

  test("that is the last one ends with a TimeoutError, which is a ConnectionError", async () => {
    proxy.faults.push("request stuck");
    const error = await failureOf(
      clientWith({ timeoutMs: LONG_MS }).project.get({ timeoutMs: SHORT_MS, retriesMax: 0 }),
    );
    expect(error).toBeInstanceOf(TimeoutError);
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error).toMatchObject({ isOutcomeUnknown: true, message: `No answer came within ${SHORT_MS} ms.` });
  });

  test("may have any length of time", async () => {
    expect((await clientWith({ timeoutMs: Infinity, deadlineMs: Infinity }).project.get()).id).toBe(
      project.id,
    );
  });
});

describe("the client's deadline", () => {
  test("ends a try, and allows no wait beyond itself", async () => {
    proxy.faults.push(...Array<Fault>(50).fill("request stuck"));
    const waitsMs: number[] = [];
    let nowMs = 0;
    const client = clientWith({
      deadlineMs: 3_000,
      timeoutMs: 1,
      retriesMax: 50,
      random: () => 0.999,
      now: () => nowMs,
      async sleep(ms) {
        waitsMs.push(ms);
        nowMs += ms;
      },
    });
    expect(await failureOf(client.project.get())).toBeInstanceOf(TimeoutError);
    // The next wait would take 1,998 ms, and 1,501.5 ms are left.
    expect(waitsMs.map(Math.round)).toEqual([500, 999]);
  });

  test("leaves a try 0 ms, and no negative time, after a wait that took longer than planned", async () => {
    const warnings: string[] = [];
    const warn = ({ name }: Error) => warnings.push(name);
    process.on("warning", warn);
    proxy.faults.push("request stuck", "request stuck");
    let nowMs = 0;
    const client = clientWith({
      deadlineMs: 3_000,
      timeoutMs: 1,
      random: () => 0.5,
      now: () => nowMs,
      async sleep() {
        nowMs += 3_001;
      },
    });
    expect(await failureOf(client.project.get())).toMatchObject({ message: "No answer came within 0 ms." });
    process.off("warning", warn);
    expect(warnings).toEqual([]);
  });

  test("ends the only try before the try's own time", async () => {
    proxy.faults.push("request stuck");
    const startedAt = performance.now();
    const error = await failureOf(clientWith({ deadlineMs: SHORT_MS, timeoutMs: LONG_MS }).project.get());
    expect(error).toBeInstanceOf(TimeoutError);
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(SHORT_MS - 1);
  });
});

describe("an abort", () => {
  const reason = new Error("the user went away");

  test("before the request sends nothing", async () => {
    const call = clientWith({}).jobs.create(fields, { signal: AbortSignal.abort(reason) });
    expect(await failureOf(call)).toBe(reason);
    expect(proxy.requests).toEqual([]);
  });

  test.each<[Fault, number]>([
    ["request stuck", 4],
    ["answer stuck halfway", 4],
    ["request stuck", 0],
  ])(
    "of a try ends it with the signal's reason, and nothing is sent again: %s, %i retries",
    async (fault, retriesMax) => {
      proxy.faults.push(fault, fault, fault);
      const { signal, abort } = aborting();
      const call = failureOf(clientWith({ retriesMax }).jobs.create(fields, { signal }));
      while (proxy.requests.length === 0) await new Promise(setImmediate);
      abort();
      expect(await call).toBe(reason);
      expect(proxy.requests).toHaveLength(1);
    },
  );

  test("ends a wait at once", async () => {
    // The wait is longer than this test may take.
    proxy.faults.push({ status: "429 Too Many Requests", headers: { "retry-after": "95" } });
    const { signal, abort } = aborting();
    const { promise: isWaiting, resolve } = Promise.withResolvers<void>();
    const random = () => {
      resolve();
      return 0;
    };
    const call = failureOf(clientWith({ random, signal }).jobs.create(fields));
    await isWaiting;
    abort();
    expect(await call).toBe(reason);
    expect(proxy.requests).toHaveLength(1);
  });

  test("ends the iteration over a list", async () => {
    const { signal, abort } = aborting();
    const client = clientWith({});
    for (let n = 0; n < 3; n++) await client.jobs.create(fields);
    const seen: string[] = [];
    const walk = async () => {
      for await (const { id } of client.jobs.list({ limit: 1 }, { signal })) {
        seen.push(id);
        abort();
      }
    };
    expect(await failureOf(walk())).toBe(reason);
    expect(seen).toHaveLength(1);
  });

  function aborting() {
    const controller = new AbortController();
    return { signal: controller.signal, abort: () => controller.abort(reason) };
  }
});
