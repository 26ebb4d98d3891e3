import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { countFds, until } from "../../runtime-contract/until.ts";
import {
  parseRaw,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { startStopwatch } from "../../support/stopwatch.ts";
import { chunked, chunkOf, exchange, expectServed, head, JSON_TYPE } from "./support.ts";

/** The gateway's own RECEIVE_MS and TAKE_TIMEOUT_MS. */
const DEADLINE_MS = 30_000;
/** Bun's own deadline for the head of a request is about 12 s. Sending all of this head would take minutes. */
const HEAD_DEADLINE_MS_MAX = 30_000;
const MARGIN_MS = 5_000;
const BYTE_EVERY_MS = 500;
/** The time for receiving at the hasty gateway. A body of 4 MiB may take 32 s more than this. */
const HASTY_RECEIVE_MS = 1_000;
const LARGE_BODY_BYTES = 4_194_304;
/** The silence is longer than the server keeps an idle connection by default, and shorter than the body's time. */
const SILENCE_MS = 18_000;
const SILENT_CONNECTIONS = 3_000;
const CONNECTIONS_AT_ONCE = 200;
/** A batch without a declared length counts as the largest batch. A project may have this many of the largest batches. */
const BATCHES_OF_PROJECT_MAX = 4;
/** The answer is larger than the kernel buffers for a client that does not read. */
const LARGE_ANSWER_PAYLOADS = 40;
/** How often the large answers are asked for, since a slow machine may not make all before the first is cut off. */
const FILLED_TRIES_MAX = 3;
/** A slow machine cuts a client off later than at the deadline. */
const CUT_OFF_MS_MAX = 120_000;
const TEST_TIMEOUT_MS = 300_000;

let gateway: TestGateway;
let neighbour: TestProject;
const sockets: net.Socket[] = [];

beforeAll(async () => {
  gateway = await startTestGateway();
  neighbour = await gateway.addProject();
});
afterAll(async () => {
  for (const socket of sockets) socket.destroy();
  await gateway.stop();
});

/** A connection that the test ends if it is still open afterwards. */
function connect(onConnect: (socket: net.Socket) => void): net.Socket {
  const socket = net.connect(gateway.port, "127.0.0.1", () => onConnect(socket));
  socket.on("error", () => socket.destroy());
  sockets.push(socket);
  return socket;
}

interface Dribbled {
  /** The answer's text. */
  text: string;
  /** The time until the connection ended; `workedMs` is without the time in which the machine held this process up. */
  tookMs: number;
  workedMs: number;
}

/** Sends one byte at a time. */
function dribble(start: string, rest: string): Promise<Dribbled> {
  const { promise, resolve } = Promise.withResolvers<Dribbled>();
  const startedAt = performance.now();
  const stopwatch = startStopwatch();
  let text = "";
  let sent = 0;
  let timer: NodeJS.Timeout | undefined;
  const socket = connect((socket) => {
    socket.write(start);
    timer = setInterval(() => socket.write(rest[sent++] ?? " "), BYTE_EVERY_MS);
  });
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString();
    if (text.includes('"error"')) socket.end();
  });
  socket.on("close", () => {
    clearInterval(timer);
    resolve({ text, tookMs: performance.now() - startedAt, workedMs: stopwatch.stop() });
  });
  return promise;
}

/**
 * Stays silent between the two parts. Answers the received text, and the time from the last received byte to the end
 * of the connection.
 */
function pause(port: number, first: string, rest: string): Promise<{ text: string; idleMs: number }> {
  const { promise, resolve } = Promise.withResolvers<{ text: string; idleMs: number }>();
  let text = "";
  let answeredAt = 0;
  const socket = net.connect(port, "127.0.0.1", () => socket.write(first));
  sockets.push(socket);
  const timer = setTimeout(() => socket.write(rest), SILENCE_MS);
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString();
    answeredAt = performance.now();
  });
  socket.on("error", () => socket.destroy());
  socket.on("close", () => {
    clearTimeout(timer);
    resolve({ text, idleMs: performance.now() - answeredAt });
  });
  return promise;
}

// The tests run at once, because each one takes as long as its deadline.
describe.concurrent("a client that", () => {
  test("has its key revoked while its body arrives creates nothing", async () => {
    const project = await gateway.addProject();
    const { id, key } = await gateway.addKey(project, { scope: "jobs" });
    const body = JSON.stringify({ target_url: TARGET_URL });
    const fields = [
      `Authorization: Bearer ${key}`,
      JSON_TYPE,
      `Content-Length: ${body.length}`,
      "Expect: 100-continue",
    ];
    const start = `${head(null, "POST /v2/jobs", ...fields)}\r\n`;
    const headTaken = Promise.withResolvers<void>();
    const { promise: answered, resolve } = Promise.withResolvers<string>();
    let text = "";
    const socket = connect((socket) => socket.write(start + body.slice(0, 9)));
    socket.on("data", (chunk: Buffer) => {
      text += chunk.toString();
      // The first answer is a 100, once the gateway has taken the head.
      headTaken.resolve();
      if (text.includes("}")) resolve(text.slice(text.lastIndexOf("HTTP/1.1")));
    });
    socket.on("close", () => headTaken.reject(new Error("the gateway closed the connection")));
    await headTaken.promise;
    await Bun.sleep(1_500);
    const revoked = await gateway.call("DELETE", `/v2/keys/${id}`, { key: project.production });
    expect(revoked.status).toBe(200);
    socket.write(body.slice(9));
    readRefusal(parseRaw(await answered), "unauthorized");
    const { text: jobs } = await gateway.call("GET", "/v2/jobs", { key: project.production });
    expect(JSON.parse(jobs).data).toEqual([]);
  });

  test(
    "sends its body byte by byte is refused when its time is over, and creates nothing",
    async () => {
      const project = await gateway.addProject();
      const body = JSON.stringify({ target_url: TARGET_URL }).padEnd(1_000);
      const start = head(project, "POST /v2/jobs", JSON_TYPE, `Content-Length: ${body.length}`);
      const answers = await Promise.all([
        dribble(`${start}\r\n`, body),
        dribble(
          `${head(project, "POST /v2/jobs", JSON_TYPE, "Transfer-Encoding: chunked")}\r\n400\r\n`,
          body,
        ),
      ]);
      for (const { text, tookMs, workedMs } of answers) {
        const { message } = readRefusal(parseRaw(text), "request_timeout");
        expect(message).toContain("30 seconds");
        expect(parseRaw(text).headers.get("connection")).toBe("close");
        expect(tookMs).toBeGreaterThan(DEADLINE_MS - 100);
        expect(workedMs).toBeLessThan(CUT_OFF_MS_MAX);
      }
      const [row] = await gateway.query("SELECT count(*)::int AS count FROM jobs WHERE project_no = $1", [
        project.no,
      ]);
      expect(row).toEqual({ count: 0 });
      await expectServed(gateway, project);
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "pauses within a large body is served, and its connection ends as others do",
    async () => {
      const hasty = await gateway.startMate({ receiveMs: HASTY_RECEIVE_MS });
      const project = await gateway.addProject();
      const body = JSON.stringify({ jobs: [{ target_url: TARGET_URL }] }).padEnd(LARGE_BODY_BYTES);
      const [most, last] = [body.slice(0, -1), body.slice(-1)];
      const start = head(project, "POST /v2/jobs/batch", JSON_TYPE);
      const answers = await Promise.all([
        pause(hasty.port, `${start}Content-Length: ${body.length}\r\n\r\n${most}`, last),
        pause(hasty.port, `${start}Transfer-Encoding: chunked\r\n\r\n${chunkOf(most)}`, chunked(last)),
      ]);
      await hasty.stop();
      for (const { text, idleMs } of answers) {
        expect(parseRaw(text).status).toBe(201);
        expect(idleMs).toBeLessThan(CUT_OFF_MS_MAX);
      }
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "sends its headers byte by byte is cut off, however few bytes are missing",
    async () => {
      const start = head(neighbour, "GET /v2/project");
      const [within, between] = await Promise.all([
        dribble(`${start}X: `, "a".repeat(1_000)),
        dribble(start, "X: 1\r\n".repeat(200)),
      ]);
      for (const { text, workedMs } of [within, between]) {
        expect(text).toBe("");
        expect(workedMs).toBeLessThan(HEAD_DEADLINE_MS_MAX);
      }
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "opens thousands of silent connections keeps no other client out, and is cut off",
    async () => {
      const before = countFds();
      let openCount = 0;
      // Connections open in waves: one beyond the kernel's queue looks open to the client and is unknown to the server.
      for (let n = 0; n < SILENT_CONNECTIONS; n += CONNECTIONS_AT_ONCE) {
        const wave = Array.from({ length: CONNECTIONS_AT_ONCE }, () => {
          const { promise, resolve } = Promise.withResolvers<void>();
          connect(() => resolve()).on("close", () => openCount--);
          openCount++;
          return promise;
        });
        await Promise.all(wave);
      }
      for (let n = 0; n < 10; n++) await expectServed(gateway, neighbour);
      await until(
        () => openCount === 0,
        () => `${openCount} are open`,
        CUT_OFF_MS_MAX,
      );
      await until(
        () => countFds() < before + 100,
        () => `${countFds()} descriptors, ${before} before`,
      );
    },
    TEST_TIMEOUT_MS,
  );

  test(
    "does not read its answers delays only its own project's answers, until it is cut off",
    async () => {
      const payload = { x: "y".repeat(PAYLOAD_BYTES_MAX - 8) };
      const batchOf = (count: number) =>
        JSON.stringify({ jobs: Array.from({ length: count }, () => ({ target_url: TARGET_URL, payload })) });
      const headOf = (project: TestProject) =>
        head(project, "POST /v2/jobs/batch", JSON_TYPE, "Transfer-Encoding: chunked");
      const post = async (project: TestProject) => {
        const start = headOf(project);
        const bytes = `${start}Connection: close\r\n\r\n${chunked(batchOf(1))}`;
        return parseRaw(await exchange(gateway.port, bytes));
      };
      const jobsMade = async (project: TestProject) => {
        const rows = await gateway.query("SELECT 1 FROM jobs WHERE project_no = $1", [project.no]);
        return rows.length;
      };
      /** Whether all large answers waited to be read before the first of them was cut off. */
      const fill = async (project: TestProject): Promise<boolean> => {
        const large = `${headOf(project)}\r\n${chunked(batchOf(LARGE_ANSWER_PAYLOADS))}`;
        const unread = Array.from({ length: BATCHES_OF_PROJECT_MAX }, () =>
          connect((socket) => socket.pause().write(large)),
        );
        const wanted = BATCHES_OF_PROJECT_MAX * LARGE_ANSWER_PAYLOADS;
        const giveUpAt = performance.now() + DEADLINE_MS - MARGIN_MS;
        while ((await jobsMade(project)) < wanted && performance.now() < giveUpAt) await Bun.sleep(20);
        if (performance.now() < giveUpAt) return true;
        for (const socket of unread) socket.destroy();
        return false;
      };
      let project = await gateway.addProject();
      let startedAt = performance.now();
      for (let tries = 1; !(await fill(project)); tries++) {
        expect(tries).toBeLessThan(FILLED_TRIES_MAX);
        project = await gateway.addProject();
        startedAt = performance.now();
      }
      const refused = await post(project);
      expect(readRefusal(refused, "service_unavailable").message).toContain("overloaded");
      expect((await gateway.call("GET", "/v2/jobs", { key: project.production })).status).toBe(200);
      await expectServed(gateway, neighbour);
      let status = 0;
      await until(
        async () => {
          ({ status } = await post(project));
          return status === 201;
        },
        () => `the answer is still ${status}`,
        CUT_OFF_MS_MAX,
      );
      expect(performance.now() - startedAt).toBeGreaterThan(DEADLINE_MS - MARGIN_MS);
    },
    TEST_TIMEOUT_MS,
  );
});
