import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import {
  type Client,
  type ClientOptions,
  ConnectionError,
  createClient,
  TimeoutError,
} from "../../shared/client/index.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";
import { type Fault, type FaultyRoad, startFaultyRoad } from "./faulty-road.ts";

let gateway: TestGateway;
let road: FaultyRoad;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  road = await startFaultyRoad(gateway);
  project = await gateway.addProject();
  return () => road.stop();
});

const clientWith = (options: Partial<ClientOptions>): Client =>
  createClient({ baseUrl: road.url, apiKey: project.production, ...options });
const failureOf = (call: Promise<unknown>) =>
  call.then(
    () => "nothing was thrown",
    (error: unknown) => error,
  );
const fields = { target_url: TARGET_URL };
const SHORT_MS = 60;
/** Most requests are answered in this time, also where the machine is slow. */
const ENOUGH_MS = 1_000;
/** Longer than any test may take. */
const LONG_MS = 3_600_000;

describe("a try", () => {
  test.each<Fault>(["request stuck", "answer stuck", "answer stuck halfway"])(
    "ends with its time and is made again: %s",
    async (fault) => {
      road.faults.push(fault);
      const client = clientWith({ timeoutMs: ENOUGH_MS, retriesMax: 50, random: () => 0 });
      const { result, answer } = await client.jobs.create(fields).withAnswer();
      if (fault !== "request stuck") expect(answer.isReplayed).toBe(true);
      const { data } = await client.jobs.list();
      expect(data.map(({ id }) => id)).toEqual([result.id]);
      expect(new Set(road.valuesOf("idempotency-key").slice(0, 2)).size).toBe(1);
    },
  );

  test("that is the last one ends as a TimeoutError, which is a ConnectionError", async () => {
    road.faults.push("request stuck");
    const error = await failureOf(
      clientWith({ timeoutMs: LONG_MS }).project.get({ timeoutMs: SHORT_MS, retriesMax: 0 }),
    );
    expect(error).toBeInstanceOf(TimeoutError);
    expect(error).toBeInstanceOf(ConnectionError);
    expect(error).toMatchObject({ isOutcomeUnknown: true, message: `No answer came within ${SHORT_MS} ms.` });
  });

  test("has as much time as anybody wants", async () => {
    expect((await clientWith({ timeoutMs: Infinity, deadlineMs: Infinity }).project.get()).id).toBe(
      project.id,
    );
  });
});

describe("the deadline", () => {
  test("ends a try, and is not outlasted by any wait", async () => {
    road.faults.push(...Array<Fault>(50).fill("request stuck"));
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
    // The next wait would be 1,998 ms, and 1,501.5 are left.
    expect(waitsMs.map(Math.round)).toEqual([500, 999]);
  });

  test("that a wait has outlasted after all leaves its try no time, and not less than none", async () => {
    const warnings: string[] = [];
    const warn = ({ name }: Error) => warnings.push(name);
    process.on("warning", warn);
    road.faults.push("request stuck", "request stuck");
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

  test("ends the only try where that has more time", async () => {
    road.faults.push("request stuck");
    const startedAt = performance.now();
    const error = await failureOf(clientWith({ deadlineMs: SHORT_MS, timeoutMs: LONG_MS }).project.get());
    expect(error).toBeInstanceOf(TimeoutError);
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(SHORT_MS - 1);
  });
});

describe("an abort", () => {
  const reason = new Error("the user went away");

  test("before anything was sent sends nothing", async () => {
    const call = clientWith({}).jobs.create(fields, { signal: AbortSignal.abort(reason) });
    expect(await failureOf(call)).toBe(reason);
    expect(road.requests).toEqual([]);
  });

  test.each<[Fault, number]>([
    ["request stuck", 4],
    ["answer stuck halfway", 4],
    ["request stuck", 0],
  ])(
    "of a try ends it with the signal's reason, and nothing is sent again: %s, %i retries",
    async (fault, retriesMax) => {
      road.faults.push(fault, fault, fault);
      const { signal, abort } = aborting();
      const call = failureOf(clientWith({ retriesMax }).jobs.create(fields, { signal }));
      while (road.requests.length === 0) await new Promise(setImmediate);
      abort();
      expect(await call).toBe(reason);
      expect(road.requests).toHaveLength(1);
    },
  );

  test("of a wait ends it at once", async () => {
    // More seconds than this test may take.
    road.faults.push({ status: "429 Too Many Requests", headers: { "retry-after": "95" } });
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
    expect(road.requests).toHaveLength(1);
  });

  test("ends the walk over a list", async () => {
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
