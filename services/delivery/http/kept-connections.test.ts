import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { openOutbound } from "../outbound.ts";

setDefaultTimeout(300_000);

const TARGET = join(import.meta.dir, "../../../test/support/target-closing.ts");
const RUN_MS = 10_000;
/** A busy machine may need more than RUN_MS for so many attempts. */
const ATTEMPTS_MIN = 10_000;
/** The limits for all attempts, and for one kind of target, where the few that teach the host's habit weigh more. */
const UNKNOWN_PART_MAX = 0.001;
const UNKNOWN_PART_OF_KIND_MAX = 0.005;

/**
 * How targets close kept connections. All senders send at once and then pause, so that as many connections are idle. A
 * pause lasts about as long as the target keeps a connection, or less.
 */
const CLOSING = [
  { when: "after 200 ms", idleMs: 200, requestsMax: 0, senders: 60, pausesMs: [50, 195, 199, 201, 205] },
  { when: "after a second", idleMs: 1_000, requestsMax: 0, senders: 250, pausesMs: [300, 990, 998, 1_001] },
  { when: "after each tenth request", idleMs: 0, requestsMax: 10, senders: 20, pausesMs: [0, 1, 5, 20] },
];

interface Sent {
  answered: number;
  unknown: number;
  /** All other outcomes. */
  others: string[];
  /** The requests that the target saw. */
  seen: number;
  connections: number;
}

/** Sends until `isEnough` says so. `note` hears of each round's attempts. */
async function sendTo(
  { idleMs, requestsMax, senders, pausesMs }: (typeof CLOSING)[number],
  { note, isEnough }: { note(count: number): void; isEnough(): boolean },
): Promise<Sent> {
  const child = Bun.spawn([process.execPath, TARGET, String(idleMs), String(requestsMax)], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const output = child.stdout.getReader();
  const read = async () => new TextDecoder().decode((await output.read()).value).trim();
  const url = `http://127.0.0.1:${await read()}/`;
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const { signal } = new AbortController();
  const sent: Sent = { answered: 0, unknown: 0, others: [], seen: 0, connections: 0 };
  for (let round = 0; !isEnough(); round++) {
    const posts = Array.from({ length: senders }, () =>
      outbound.post({ url, headers: {}, body: "{}", timeoutMs: 60_000, signal }),
    );
    for (const exchange of await Promise.all(posts)) {
      if (exchange.kind === "answered") sent.answered++;
      else if (exchange.kind === "unknown") sent.unknown++;
      else sent.others.push(JSON.stringify(exchange));
    }
    note(senders);
    await Bun.sleep(pausesMs[round % pausesMs.length] ?? 0);
  }
  await outbound.close();
  child.stdin.end();
  const [seen, connections] = (await read()).split(" ").map(Number);
  await child.exited;
  return { ...sent, seen: seen ?? Number.NaN, connections: connections ?? Number.NaN };
}

test("of attempts at targets that close kept connections less than 0.1 % have an unknown outcome, and none another", async () => {
  const enoughAt = performance.now() + RUN_MS;
  let attempts = 0;
  const sent = await Promise.all(
    CLOSING.map((closing) =>
      sendTo(closing, {
        note: (count) => {
          attempts += count;
        },
        isEnough: () => attempts >= ATTEMPTS_MIN && performance.now() > enoughAt,
      }),
    ),
  );
  for (const [place, { when }] of CLOSING.entries()) {
    const { answered, unknown, others, seen } = sent[place] as Sent;
    expect([when, others]).toEqual([when, []]);
    // No request was sent twice.
    expect(seen).toBeLessThanOrEqual(answered + unknown);
    expect([when, unknown / (answered + unknown) < UNKNOWN_PART_OF_KIND_MAX]).toEqual([when, true]);
  }
  const sum = (figure: "unknown" | "answered" | "connections") =>
    sent.reduce((total, kind) => total + kind[figure], 0);
  expect(sum("unknown") / attempts).toBeLessThan(UNKNOWN_PART_MAX);
  // Connections are kept: there are fewer of them than answers.
  expect(sum("connections")).toBeLessThan(sum("answered"));
});
