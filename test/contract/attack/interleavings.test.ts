import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import net from "node:net";
import fc from "fast-check";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { head, JSON_TYPE } from "./support.ts";

let gateway: TestGateway;
const mates: { port: number; stop(): Promise<void> }[] = [];
let ports: number[];

beforeAll(async () => {
  gateway = await startTestGateway();
  for (let n = 0; n < 2; n++) mates.push(await gateway.startMate());
  ports = [gateway.port, ...mates.map(({ port }) => port)];
});
afterAll(async () => {
  for (const mate of mates) await mate.stop();
  await gateway.stop();
});

const TEST_TIMEOUT_MS = 300_000;
const WINDOW_MS = 60_000;
/** A client with fewer accepted requests within this time is never refused. */
const GUARANTEE_MS = 60_100;
const TICK_MS = 100;
const LIMIT = 20;

/** Sends the first bytes of a request, then breaks the connection after some turns of the event loop. */
async function breakOff(port: number, bytes: string, turns: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const socket = net.connect(port, "127.0.0.1", () => socket.write(bytes, () => resolve()));
  socket.on("error", () => resolve());
  await promise;
  for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
  socket.destroy();
}

test(
  "one Idempotency-Key makes one job over several gateways, whichever senders break off and when",
  async () => {
    const steps = fc.record({
      key: fc.nat(1),
      gateway: fc.nat(2),
      // The percentage of the request that is sent before the break. A sender of 100 % may stay.
      part: fc.oneof(fc.integer({ min: 1, max: 99 }), fc.constant(100)),
      turns: fc.nat(40),
      stays: fc.boolean(),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(steps, { minLength: 1, maxLength: 12 }), async (requests) => {
        const project = await gateway.addProject();
        const prefix = randomBytes(4).toString("hex");
        const body = JSON.stringify({ target_url: TARGET_URL, payload: { n: 1 } });
        const send = (key: number, port: number) =>
          gateway.call("POST", "/v2/jobs", {
            key: project.production,
            body,
            port,
            headers: { "Idempotency-Key": `${prefix}/${key}` },
          });
        const answers = await Promise.all(
          requests.map(async ({ key, gateway: index, part, turns, stays }) => {
            const port = ports[index] ?? 0;
            if (part === 100 && stays) return { key, answer: await send(key, port) };
            const lines = [JSON_TYPE, `Idempotency-Key: ${prefix}/${key}`, `Content-Length: ${body.length}`];
            const bytes = `${head(project, "POST /v2/jobs", ...lines)}\r\n${body}`;
            await breakOff(port, bytes.slice(0, Math.ceil((bytes.length * part) / 100)), turns);
            return { key, answer: null };
          }),
        );
        const keys = [...new Set(requests.map(({ key }) => key))];
        for (const key of keys) {
          const before = answers.flatMap((sent) => (sent.key === key && sent.answer ? [sent.answer] : []));
          const after = await Promise.all(ports.map((port) => send(key, port)));
          expect(new Set([...before, ...after].map(({ status }) => status))).toEqual(new Set([201]));
          expect(new Set([...before, ...after].map(({ text }) => text)).size).toBe(1);
        }
        const [row] = await gateway.query("SELECT count(*)::int AS count FROM jobs WHERE project_no = $1", [
          project.no,
        ]);
        expect(row).toEqual({ count: keys.length });
      }),
      { numRuns: 20 },
    );
  },
  TEST_TIMEOUT_MS,
);

interface Asked {
  /** The time span in which the database decided, in milliseconds of a clock that both bursts and pauses move on. */
  from: number;
  to: number;
  isAccepted: boolean;
}

/** Sends each burst to several gateways at once, then makes the stored ticks older. */
async function askInBursts(
  project: TestProject,
  bursts: { ports: number[]; ticks: number }[],
): Promise<Asked[]> {
  const asked: Asked[] = [];
  let aged = 0;
  for (const burst of bursts) {
    await Promise.all(
      burst.ports.map(async (index) => {
        const from = performance.now() + aged;
        const { status } = await gateway.call("GET", "/v2/project", {
          key: project.production,
          port: ports[index] ?? 0,
        });
        asked.push({ from, to: performance.now() + aged, isAccepted: status === 200 });
      }),
    );
    // The ticks pass through negative numbers, since two ticks must differ at every moment.
    await gateway.query("UPDATE rate_ticks SET tick = -tick WHERE project_no = $1", [project.no]);
    await gateway.query("UPDATE rate_ticks SET tick = -tick - $2 WHERE project_no = $1", [
      project.no,
      burst.ticks,
    ]);
    aged += burst.ticks * TICK_MS;
  }
  return asked;
}

test(
  "no minute has more accepted requests than the limit over all gateways, and no request below the limit is refused",
  async () => {
    const bursts = fc.array(
      fc.record({
        ports: fc.array(fc.nat(2), { minLength: 1, maxLength: 30 }),
        ticks: fc.oneof(fc.nat(20), fc.nat(350), fc.integer({ min: 595, max: 605 })),
      }),
      { minLength: 2, maxLength: 12 },
    );
    await fc.assert(
      fc.asyncProperty(bursts, async (steps) => {
        const project = await gateway.addProject("pro", { requestRate: LIMIT });
        const asked = await askInBursts(project, steps);
        const accepted = asked.filter(({ isAccepted }) => isAccepted);
        for (const { from } of accepted) {
          const surelyWithin = accepted.filter((other) => other.from >= from && other.to < from + WINDOW_MS);
          expect(surelyWithin.length).toBeLessThanOrEqual(LIMIT);
        }
        for (const { from, to } of asked.filter(({ isAccepted }) => !isAccepted)) {
          const perhapsBefore = accepted.filter(
            (other) => other.to >= from - GUARANTEE_MS && other.from <= to,
          );
          expect(perhapsBefore.length).toBeGreaterThanOrEqual(LIMIT);
        }
      }),
      { numRuns: 20 },
    );
  },
  TEST_TIMEOUT_MS,
);
