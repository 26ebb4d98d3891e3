import { afterEach, describe, expect, test } from "bun:test";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { type CollectedSpan, startCollector } from "../../../test/support/collector.ts";
import { startStopwatch } from "../../../test/support/stopwatch.ts";
import { traceIdOf } from "../../domain/trace.ts";
import type { Log } from "../log.ts";
import { startRecorder } from "./recorder.ts";
import { startTraces } from "./start.ts";
import { type Beginning, chooseTraces, NO_TRACES, type Recorder, type Traces } from "./traces.ts";

const PARENT = { traceId: "4bf92f3577b34da6a3ce929d0e0e4736", spanId: "00f067aa0ba902b7", isSampled: true };
const ID = "req_01m7ybr3kgsnpd4n830jn3f3ba";
const AT = 1_795_000_000_123.5;

const SILENT: Log = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
};

const beginning = (): Beginning => ({
  name: "a",
  kind: "server",
  at: AT,
  id: ID,
  attributes: { n: 1, s: "x" },
});
const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Complaint {
  error: string;
  lostCount: number;
}

async function startAt(endpoint: string): Promise<{ traces: Traces; complaints: Complaint[] }> {
  const complaints: Complaint[] = [];
  const log = { ...SILENT, warn: (fields: object) => complaints.push(fields as Complaint) };
  const settings = { endpoint, ratio: 1 };
  const traces = await startTraces({ service: "test", nodeName: "node-0", settings, log });
  return { traces, complaints };
}

/** Begins and ends spans of many projects, so that only the limit of the process applies. Returns how many began. */
function record(traces: Traces, count: number): number {
  let begun = 0;
  for (let n = 0; n < count; n++) {
    const span = traces.begin(PARENT, n, beginning);
    span?.end(AT + 1, { attributes: {}, isError: false });
    if (span !== null) begun++;
  }
  return begun;
}

async function until(condition: () => boolean): Promise<void> {
  const giveUpAt = performance.now() + 20_000;
  while (!condition()) {
    if (performance.now() > giveUpAt) throw new Error(`did not come: ${condition}`);
    await Bun.sleep(20);
  }
}

describe("the choice of recorded spans", () => {
  const begunIn: string[] = [];
  const recorder: Recorder = {
    begin(parent, { id }) {
      begunIn.push(parent?.traceId ?? id);
      return {
        context: PARENT,
        beginRequest: () => recorder.begin(parent, beginning()),
        note() {},
        end() {},
      };
    },
    async stop() {},
  };
  let now = 0;
  let chance = 0.5;
  const traces = chooseTraces(0.25, recorder, { now: () => now, random: () => chance });

  test("follows the flag of the parent, and is random without a parent", () => {
    const unsampled = { ...PARENT, isSampled: false };
    const never = () => {
      throw new Error("described");
    };
    expect(traces.begin(unsampled, 1, never)).toBeNull();
    expect(traces.begin(null, 1, never)).toBeNull();
    chance = 0.2499;
    expect(traces.begin(unsampled, 1, never)).toBeNull();
    expect(traces.begin(null, 1, beginning)).not.toBeNull();
    chance = 0.25;
    expect(traces.begin(null, 1, never)).toBeNull();
    expect(traces.begin(PARENT, 1, beginning)).not.toBeNull();
    expect(begunIn).toEqual([ID, PARENT.traceId]);
  });

  test("is limited per second, and no project uses up the limit", () => {
    now += 1_000;
    const begin = (projectNo: number, times: number) =>
      Array.from({ length: times }, () => traces.begin(PARENT, projectNo, beginning)).filter(Boolean).length;
    expect(begin(1, 1_000)).toBe(40);
    expect([2, 3, 4, 5, 6].map((projectNo) => begin(projectNo, 1_000))).toEqual([40, 40, 40, 40, 0]);
    now += 999;
    expect(begin(6, 1)).toBe(0);
    now += 1;
    expect(begin(6, 1)).toBe(1);
  });

  test("is empty where no collector is configured", async () => {
    const off = await startTraces({ service: "test", nodeName: "node-0", settings: null, log: SILENT });
    expect(off).toBe(NO_TRACES);
    expect(off.begin(PARENT, 1, beginning)).toBeNull();
  });
});

describe("a collector", () => {
  test("receives the spans in batches, the last of them before the process ends", async () => {
    const collector = startCollector();
    closing.push(collector.stop);
    const { traces, complaints } = await startAt(`${collector.url}/`);
    const root = traces.begin(null, 1, beginning);
    const child = traces.begin(PARENT, 1, () => ({ ...beginning(), name: "b", kind: "consumer" }));
    const request = child?.beginRequest("POST", AT + 1);
    child?.note("claimed", AT + 0.25);
    request?.end(AT + 2, { attributes: { status: 503 }, isError: true });
    child?.end(AT + 3, { attributes: {}, isError: false });
    root?.end(AT + 10, { attributes: { late: "y" }, isError: false });
    await traces.stop();
    await collector.until((spans) => spans.length > 0);
    expect(collector.texts).toHaveLength(1);
    const named = (name: string) => collector.spans.find((span) => span.name === name) as CollectedSpan;
    expect(named("a")).toMatchObject({
      service: "jobwheel-test",
      kind: 2,
      // The trace has the 128 bits of the id.
      traceId: traceIdOf(ID),
      spanId: root?.context.spanId ?? "",
      parentId: null,
      startedAt: AT,
      endedAt: AT + 10,
      isError: false,
      attributes: { n: 1, s: "x", late: "y" },
    });
    expect(named("b")).toMatchObject({
      kind: 5,
      traceId: PARENT.traceId,
      parentId: PARENT.spanId,
      notes: ["claimed"],
    });
    expect(named("POST")).toMatchObject({
      kind: 3,
      traceId: PARENT.traceId,
      parentId: named("b").spanId,
      isError: true,
      attributes: { status: 503 },
    });
    expect(complaints).toEqual([]);
  });

  test("that is slow receives the spans that waited, and not those beyond the queue", async () => {
    const gate = Promise.withResolvers<void>();
    const collector = startCollector(async () => {
      await gate.promise;
      return Response.json({});
    });
    closing.push(collector.stop);
    const recorder = startRecorder({
      service: "test",
      nodeName: "node-0",
      endpoint: collector.url,
      log: SILENT,
    });
    for (let n = 0; n < 10_000; n++) {
      recorder.begin(PARENT, beginning()).end(AT + 1, { attributes: {}, isError: false });
    }
    await collector.until((spans) => spans.length > 0);
    gate.resolve();
    await recorder.stop();
    // The waiting spans, and those of the request under way.
    await collector.until((spans) => spans.length >= 2_048 + 512);
    expect(collector.spans).toHaveLength(2_048 + 512);
  });

  test("that is hostile or gone delays the end of the process by 2 s at most", async () => {
    const refuse = (status: number) => (socket: Socket) =>
      socket.end(`HTTP/1.1 ${status} ${WORDS}\r\ncontent-length: 5\r\n\r\n${WORDS}`);
    const ways = {
      "is not there": null,
      "never answers": () => undefined,
      "never ends its answer": drip,
      "is overloaded": refuse(503),
      "has a fault": refuse(500),
      "breaks off": (socket: Socket) => socket.destroy(),
    };
    const outcomes = Object.entries(ways).map(async ([way, answer]) => {
      const { traces, complaints } = await startAt(await startHostile(answer));
      expect(record(traces, 3)).toBe(3);
      const stopwatch = startStopwatch();
      await traces.stop();
      // The stopwatch leaves out only the longer waits of a busy machine. Without a limit, the end would wait 5 s and more.
      const isQuick = stopwatch.stop() < 4_000;
      // The text of the answer is not logged, because the host may be no collector.
      const isQuiet = !JSON.stringify(complaints).includes(WORDS);
      return { way, isQuick, isQuiet };
    });
    expect(await Promise.all(outcomes)).toEqual(
      Object.keys(ways).map((way) => ({ way, isQuick: true, isQuiet: true })),
    );
  });

  test("that fails is logged once a minute, with the number of lost spans", async () => {
    const { traces, complaints } = await startAt(
      await startHostile((socket) => socket.end("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")),
    );
    record(traces, 6);
    await until(() => complaints.length > 0);
    await traces.stop();
    expect(complaints).toEqual([expect.objectContaining({ lostCount: 6 })]);
  });
});

const WORDS = "words";
const DRIP_EVERY_MS = 100;

/** An answer whose next byte always comes before a timeout. */
function drip(socket: Socket): void {
  socket.write("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n");
  const timer = setInterval(() => socket.write("."), DRIP_EVERY_MS);
  socket.on("close", () => clearInterval(timer));
}

/** Answers every connection that has sent something with `answer`; null means that nothing listens. Returns the address. */
async function startHostile(answer: ((socket: Socket) => unknown) | null): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => undefined);
    socket.once("data", () => answer?.(socket));
  });
  const listening = Promise.withResolvers<void>();
  server.listen(0, "127.0.0.1", listening.resolve);
  await listening.promise;
  const { port } = server.address() as AddressInfo;
  const close = () => {
    for (const socket of sockets) socket.destroy();
    server.close();
  };
  if (answer === null) close();
  else closing.push(async () => close());
  return `http://127.0.0.1:${port}`;
}
