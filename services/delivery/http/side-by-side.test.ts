import { afterAll, beforeAll, describe, expect, test } from "bun:test";
// Bun replaces the bare name `undici` by a stub.
import { Agent } from "undici/index.js";
import { RESPONSE_BODY_BYTES_MAX } from "../../../shared/domain/run.ts";
import { startRawServer } from "../../../test/runtime-contract/raw-server.ts";
import { HOSTILE_KINDS } from "../../../test/support/target-hostile.ts";
import { openOutbound } from "../outbound.ts";
import { RULES } from "./test-support.ts";

/** Enough for exchanges that end by themselves, and for exchanges that do not. */
const TIMEOUT_MS = 30_000;
const STALLED_TIMEOUT_MS = 10_000;
/** For undici alone, which reads on for as long as a flood comes. It counts from the head of an answer that has one. */
const FLOODED_TIMEOUT_MS = 500;

/** The targets at which our client and undici have different outcomes, and why ours is wanted. */
const DIFFERENCES: Record<string, { undici: string; why: string }> = {
  "answers 100 and then 200": { undici: "faulted", why: "interim answers are read past" },
  "answers 101 and then 200": { undici: "faulted", why: "interim answers are read past" },
  "switches protocols": { undici: "faulted", why: "interim answers are read past, and nothing follows" },
  "answers 204 with a body": { undici: "204 broken", why: "a 204 ends with its head" },
  ...Object.fromEntries(
    [
      ...["early hints", "blank lines", "a status line", "blanks in a header"].map((what) => [
        what,
        "stalled",
      ]),
      ...["a chunk extension", "a chunk size"].map((what) => [what, "200 stalled"]),
    ].map(([what, undici = ""]) => [
      `sends ${what} without end`,
      { undici, why: "nobody waits for the end" },
    ]),
  ),
};

let agent: Agent;
beforeAll(() => {
  agent = new Agent({ pipelining: 1, maxHeaderSize: 65_536, headersTimeout: 0, bodyTimeout: 0 });
});
afterAll(() => agent.destroy());

/** The outcome of undici at a target, of which it reads as much as our client does. */
async function postByUndici(
  url: string,
  headMs: number,
  bodyMs = headMs,
): Promise<{ outcome: string; body: string }> {
  const aborting = new AbortController();
  const { signal } = aborting;
  let timer = setTimeout(() => aborting.abort(), headMs);
  let status = "";
  let body = "";
  const outcomeOf = (end: string) => ({ outcome: status === "" ? end : `${status} ${end}`, body });
  const target = new URL(url);
  try {
    const answered = agent.request({
      origin: target.origin,
      path: "/hook",
      method: "POST",
      body: "{}",
      signal,
    });
    const timeout = new Promise<never>((_resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
    });
    const response = await Promise.race([answered, timeout]);
    status = String(response.statusCode);
    if (bodyMs < headMs) {
      clearTimeout(timer);
      timer = setTimeout(() => aborting.abort(), bodyMs);
    }
    for await (const chunk of response.body) {
      body += chunk.toString("latin1");
      if (body.length >= RESPONSE_BODY_BYTES_MAX) return outcomeOf("enough");
    }
    return outcomeOf("complete");
  } catch {
    return outcomeOf(signal.aborted ? "stalled" : status === "" ? "faulted" : "broken");
  } finally {
    clearTimeout(timer);
  }
}

/** The outcome of our client at the target, in the same words. */
async function postByOurs(url: string, timeoutMs: number): Promise<string> {
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const { signal } = new AbortController();
  const exchange = await outbound.post({ url, headers: {}, body: "{}", timeoutMs, signal });
  await outbound.close();
  return exchange.kind === "answered" ? `${exchange.status} ${exchange.bodyEnd}` : exchange.kind;
}

describe("beside undici", () => {
  for (const { rule, answers } of RULES) {
    test(rule, async () => {
      await Promise.all(
        answers.map(async ({ bytes, comes, undici }) => {
          const server = await startRawServer((socket) => socket.end(Buffer.from(bytes, "latin1")));
          const { outcome, body } = await postByUndici(server.url, TIMEOUT_MS);
          await server.stop();
          const told = outcome === "faulted" ? "fault" : `${outcome} ${body}`;
          const alike = comes.replace(/ (kept|closed) /, " complete ");
          expect([bytes.slice(0, 200), told]).toEqual([bytes.slice(0, 200), undici ?? alike]);
          // A difference is listed only while there is one.
          expect([bytes.slice(0, 200), undici]).not.toEqual([bytes.slice(0, 200), alike]);
        }),
      );
    });
  }

  async function compare(name: string): Promise<void> {
    const kind = HOSTILE_KINDS[name];
    const target = await kind?.start();
    if (kind === undefined || target === undefined) throw new Error(`${name} is no hostile kind`);
    const timeoutMs = kind.run.status === "timed_out" ? STALLED_TIMEOUT_MS : TIMEOUT_MS;
    const difference = DIFFERENCES[name]?.undici;
    try {
      const ours = await postByOurs(target.url, timeoutMs);
      const headMs = difference === "stalled" ? FLOODED_TIMEOUT_MS : timeoutMs;
      const bodyMs = difference?.endsWith("stalled") ? FLOODED_TIMEOUT_MS : timeoutMs;
      const { outcome } = await postByUndici(target.url, headMs, bodyMs);
      expect([name, outcome]).toEqual([name, difference ?? ours]);
      // A difference is listed only while there is one.
      expect([name, ours]).not.toEqual([name, difference ?? ""]);
    } finally {
      await target.stop();
    }
  }

  test("a target that stalls has the same outcome, or a difference that is listed", async () => {
    const names = Object.keys(HOSTILE_KINDS).filter(
      (name) => HOSTILE_KINDS[name]?.run.status === "timed_out",
    );
    await Promise.all(names.map(compare));
  });

  test("every other hostile target has the same outcome, or a difference that is listed", async () => {
    for (const name of Object.keys(HOSTILE_KINDS)) {
      if (HOSTILE_KINDS[name]?.run.status !== "timed_out") await compare(name);
    }
  });
});
