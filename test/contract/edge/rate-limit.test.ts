import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  type Answer,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const addProject = (requestRate: number) => gateway.addProject("pro", { requestRate });
const get = (project: TestProject, path = "/v2/project", port = gateway.port) =>
  gateway.call("GET", path, { key: project.production, port });
const headersOf = ({ headers }: Answer) => ({
  limit: headers.get("ratelimit-limit"),
  remaining: headers.get("ratelimit-remaining"),
  reset: headers.get("ratelimit-reset"),
  retryAfter: headers.get("retry-after"),
});
/** A small part of a tick. A loan may last until the tick's end. */
const LOOK_EVERY_MS = 5;
/** Watches the loans between gateways. Counts how often it has seen one. */
function watchLoans(project: TestProject): { seen(): number; stop(): Promise<number> } {
  let seen = 0;
  let isOver = false;
  const watching = (async () => {
    while (!isOver) {
      const rows = await gateway.query("SELECT 1 FROM rate_windows WHERE project_no = $1 AND loans <> '{}'", [
        project.no,
      ]);
      seen += rows.length;
      await Bun.sleep(LOOK_EVERY_MS);
    }
  })();
  return {
    seen: () => seen,
    async stop() {
      isOver = true;
      await watching;
      return seen;
    },
  };
}

/** The number of simultaneous requests. */
const CROWD = 60;
/** A limit of which nothing is lent: an eighth of it is less than the least loan. With loans, two answers may name the same rest. */
const FEW_WITHOUT_LOAN = 39;
/** Enough simultaneous requests for a loan, however slow the machine is. */
const FEW = 8;
const ROUNDS = 10;
const ROUNDS_MAX = 60;
/** Less than the time for which a gateway waits for another one's loan. */
const HELD_UP_MS = 500;
/** Less than the window. A round that takes longer ends, and is played again with half of the limit. */
const ROUND_MS_MAX = 58_000;
/** Gateways lend at this limit, too. */
const LIMIT_MIN = 600;
const TEST_TIMEOUT_MS = 900_000;

/**
 * Plays rounds over two gateways. Each round must have exactly as many accepted requests as the limit. A gateway waits
 * for a loan only for a bounded time, which passes if the machine holds the lender up: a round with a slow request and
 * fewer accepted ones is played again. So is a round whose first requests have left the window at its end.
 */
async function playRounds(
  limit: number,
  play: (ask: (n: number) => Promise<unknown>, project: TestProject, limit: number) => Promise<unknown>,
  judge: (answers: Answer[], accepted: Answer[]) => void,
  rounds = ROUNDS,
): Promise<void> {
  let judgedCount = 0;
  let played = limit;
  for (let round = 0; round < ROUNDS_MAX && judgedCount < rounds; round++) {
    const project = await addProject(played);
    const begunAt = performance.now();
    const answers: Answer[] = [];
    let slowestMs = 0;
    const isTooLate = () => performance.now() - begunAt > ROUND_MS_MAX;
    const ask = async (n: number) => {
      if (isTooLate()) return;
      const askedAt = performance.now();
      answers.push(await get(project, "/v2/project", n % 2 === 0 ? gateway.port : mate.port));
      slowestMs = Math.max(slowestMs, performance.now() - askedAt);
    };
    await play(ask, project, played);
    const accepted = answers.filter(({ status }) => status === 200);
    if (isTooLate()) {
      played = Math.max(Math.min(limit, LIMIT_MIN), played / 2);
      continue;
    }
    if (accepted.length < played && slowestMs > HELD_UP_MS) continue;
    expect(accepted).toHaveLength(played);
    judge(answers, accepted);
    judgedCount++;
  }
  expect(judgedCount).toBe(rounds);
}

/** A minute and the tenth of a second of the oldest request, rounded up. */
const WHOLE_WINDOW = "61";

describe("the request rate", () => {
  test("stands in the headers of every answer to a valid key, and counts each request", async () => {
    const project = await addProject(9);
    const key = project.production;
    const { key: readKey } = await gateway.addKey(project, { scope: "read" });
    const answers = [
      await get(project),
      await get(project, "/v2/nothing"),
      await gateway.call("PUT", "/v2/jobs", { key }),
      await gateway.call("HEAD", "/v2/jobs", { key }),
      await gateway.call("POST", "/v2/jobs", { key, body: {} }),
      await gateway.call("POST", "/v2/jobs", { key, body: "x", headers: { "Content-Type": "text/plain" } }),
      await gateway.call("POST", "/v2/jobs", { key: readKey, body: { target_url: TARGET_URL } }),
      await gateway.call("POST", "/v2/jobs", { key, body: { target_url: TARGET_URL } }),
      await gateway.call("GET", "/v2/jobs", { key, headers: { "Service-Version": "1" } }),
    ];
    expect(answers.map(({ status }) => status)).toEqual([200, 404, 405, 200, 400, 415, 403, 201, 400]);
    expect(answers.map(headersOf)).toEqual(
      answers.map((_, n) => ({
        limit: "9",
        remaining: String(8 - n),
        reset: WHOLE_WINDOW,
        retryAfter: null,
      })),
    );
  });

  test("refuses a request beyond it before any other check, and leaves nothing behind", async () => {
    const project = await addProject(1);
    const begunAt = performance.now();
    expect((await get(project)).status).toBe(200);
    const before = await gateway.countRows();
    const refused = [
      await get(project, "/v2/nothing"),
      await gateway.call("POST", "/v2/jobs", { key: project.production, body: "{" }),
      await gateway.call("POST", "/v2/jobs", {
        key: project.production,
        body: { target_url: TARGET_URL },
        headers: { "Idempotency-Key": "a" },
      }),
    ];
    const tookSeconds = (performance.now() - begunAt) / 1_000;
    for (const answer of refused) {
      readRefusal(answer, "rate_limit_exceeded");
      const { limit, remaining, reset, retryAfter } = headersOf(answer);
      expect({ limit, remaining }).toEqual({ limit: "1", remaining: "0" });
      expect(Number(retryAfter)).toBeGreaterThan(58 - tookSeconds);
      expect(Number(retryAfter)).toBeLessThanOrEqual(61);
      expect(reset).toBe(retryAfter);
    }
    expect(await gateway.countRows()).toEqual(before);
  });

  test("accepts again once the oldest request has left the window", async () => {
    const project = await addProject(2);
    await get(project);
    await get(project);
    expect((await get(project)).status).toBe(429);
    await gateway.query("UPDATE rate_ticks SET tick = tick - 601 WHERE project_no = $1", [project.no]);
    expect(headersOf(await get(project)).remaining).toBe("1");
  });

  test("is counted for each environment and project separately", async () => {
    const [project, stranger] = [await addProject(1), await addProject(1)];
    const answers = [
      await get(project),
      await gateway.call("GET", "/v2/project", { key: project.development }),
      await get(stranger),
      await get(project),
    ];
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 429]);
  });

  test("is not shown to an unknown key, nor outside /v2", async () => {
    for (const answer of [await gateway.call("GET", "/v2/project"), await gateway.call("GET", "/")]) {
      expect(headersOf(answer)).toEqual({ limit: null, remaining: null, reset: null, retryAfter: null });
    }
  });

  test(
    "accepts exactly the limit of a burst over two gateways, ten times out of ten",
    () =>
      playRounds(
        FEW_WITHOUT_LOAN,
        (ask) => Promise.all(Array.from({ length: FEW_WITHOUT_LOAN + 1 }, (_, n) => ask(n))),
        (_, accepted) => {
          // Each accepted answer names another number of remaining requests.
          const remaining = accepted.map((answer) => Number(headersOf(answer).remaining));
          expect(remaining.sort((one, other) => one - other)).toEqual(
            Array.from({ length: FEW_WITHOUT_LOAN }, (_, n) => n),
          );
        },
      ),
    TEST_TIMEOUT_MS,
  );

  test("counts down by one with each request of one gateway, whether the request is asked for or from a loan", async () => {
    const project = await addProject(3_000);
    const loans = watchLoans(project);
    const remaining: number[] = [];
    await Promise.all(
      Array.from({ length: FEW }, async () => {
        const own: number[] = [];
        while (own.length < 50) own.push(Number(headersOf(await get(project)).remaining));
        expect(own).toEqual(own.toSorted((one, other) => other - one));
        remaining.push(...own);
      }),
    );
    expect(remaining.sort((one, other) => other - one)).toEqual(remaining.map((_, n) => 2_999 - n));
    expect(await loans.stop()).toBeGreaterThan(0);
  });

  test.each([
    [600, ROUNDS],
    [3_000, 2],
  ])(
    "of %d accepts exactly so many over two gateways that live on loans, in %d rounds",
    async (limit, rounds) => {
      let seen = 0;
      await playRounds(
        limit,
        async (ask, project, played) => {
          const loans = watchLoans(project);
          // Enough requests are on their way from the start for both gateways to see demand.
          await Promise.all(
            Array.from({ length: CROWD }, async (_, n) => {
              for (let sent = n; sent <= played; sent += CROWD) await ask(n);
            }),
          );
          seen += await loans.stop();
        },
        (answers) => expect(answers.filter(({ status }) => status === 429)).toHaveLength(1),
        rounds,
      );
      expect(seen).toBeGreaterThan(0);
    },
    TEST_TIMEOUT_MS,
  );

  test("gets back the unspent loan of a gateway that stops", async () => {
    const third = await gateway.startMate();
    const project = await addProject(3_000);
    const loans = watchLoans(project);
    let count = 0;
    while (loans.seen() === 0 && count < 2_000) {
      await Promise.all(Array.from({ length: FEW }, () => get(project, "/v2/project", third.port)));
      count += FEW;
    }
    expect(loans.seen()).toBeGreaterThan(0);
    await third.stop();
    expect(
      await gateway.query("SELECT accepted, loans FROM rate_windows WHERE accepted > 0 AND project_no = $1", [
        project.no,
      ]),
    ).toEqual([{ accepted: count, loans: {} }]);
    await loans.stop();
  });

  test("is the plan's own unless an operator has set another", async () => {
    const project = await gateway.addProject("hobby", { requestRate: "of its plan" });
    expect(headersOf(await get(project))).toMatchObject({ limit: "60", remaining: "59" });
  });
});
