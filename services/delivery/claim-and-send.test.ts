import { expect, test } from "bun:test";
import { createLog } from "../../shared/platform/log.ts";
import { StoreUnavailable } from "../../shared/store/database/database.ts";
import type { Claimed } from "../../shared/store/queue/claim.ts";
import { createClaimAndSend } from "./claim-and-send.ts";
import { InFlight, NODE_LIMITS, RequestsPerHost } from "./concurrency.ts";
import { createStoreRetries } from "./retry-until-answered.ts";

const HOST = "target.example";
const log = createLog({ name: "test", level: "silent" });
const ITEM = {
  projectNo: 1,
  flowClass: "production jobs",
  id: "job_1",
  attempt: 1,
  dueAt: 0,
  shard: 3,
} as const;
const KIND = {
  locate: async () => null,
  park: async () => "gone" as const,
  claim: async (): Promise<Claimed<never>> => ({ kind: "granted", attempt: {} as never }),
  urlOf: () => `https://${HOST}/hook`,
  send: async () => ({}) as never,
  settle: async () => undefined,
};

function startNode(kind: typeof KIND) {
  const inFlight = new InFlight(NODE_LIMITS);
  const hosts = new RequestsPerHost(NODE_LIMITS);
  const freed: string[] = [];
  const claimAndSend = createClaimAndSend(
    { clock: { now: Date.now, stop: () => undefined }, log },
    {
      jobs: kind,
      webhooks: kind,
      inFlight,
      hosts,
      room: () => inFlight.room,
      retries: createStoreRetries(log, () => inFlight.size),
      onRoom: () => undefined,
      onParked: () => undefined,
      onFreed: (host) => freed.push(host),
      onDeclaredDead: () => undefined,
    },
  );
  const takenAt = () => NODE_LIMITS.perHostMax - hosts.roomOf(HOST);
  return { claimAndSend, inFlight, freed, takenAt };
}

test("an attempt leaves its host's place once it is sent, and stays in flight until it is settled", async () => {
  const [sending, settling] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const { claimAndSend, inFlight, freed, takenAt } = startNode({
    ...KIND,
    async send() {
      await sending.promise;
      return {} as never;
    },
    settle: async () => settling.promise as Promise<undefined>,
  });
  expect(await claimAndSend("us-east", ITEM)).toEqual({ kind: "granted" });
  expect([takenAt(), inFlight.size]).toEqual([1, 1]);
  sending.resolve();
  await Bun.sleep(0);
  expect([takenAt(), inFlight.size, freed]).toEqual([0, 1, []]);
  settling.resolve();
  await Bun.sleep(0);
  expect([takenAt(), inFlight.size, freed]).toEqual([0, 0, [HOST]]);
});

test("a claim of unknown outcome is made again until Postgres has answered, since it may have been committed", async () => {
  let claimCount = 0;
  const sent: string[] = [];
  const { claimAndSend, inFlight } = startNode({
    ...KIND,
    async claim() {
      if (++claimCount < 3) throw new StoreUnavailable("the connection broke");
      return { kind: "granted" as const, attempt: {} as never };
    },
    async send() {
      sent.push(ITEM.id);
      return {} as never;
    },
  });
  expect(await claimAndSend("us-east", ITEM)).toEqual({ kind: "granted" });
  expect([claimCount, sent]).toEqual([3, [ITEM.id]]);
  await Bun.sleep(0);
  expect(inFlight.size).toBe(0);
});

test("an attempt of which two workers tell is claimed once, and the second hears that it is gone, until it is settled", async () => {
  const claimed = Promise.withResolvers<Claimed<never>>();
  let claimCount = 0;
  const { claimAndSend } = startNode({
    ...KIND,
    claim() {
      claimCount++;
      return claimed.promise;
    },
    settle: () => new Promise(() => undefined),
  });
  const answers = [claimAndSend("us-east", ITEM), claimAndSend("us-east", ITEM)];
  claimed.resolve({ kind: "granted", attempt: {} as never });
  expect(await Promise.all(answers)).toEqual([{ kind: "granted" }, { kind: "gone" }]);
  expect(await claimAndSend("us-east", ITEM)).toEqual({ kind: "gone" });
  expect(await claimAndSend("us-east", { ...ITEM, attempt: 2 })).toBeNull();
  expect(claimCount).toBe(1);
});

test("an attempt of which two workers tell and which is refused is refused to both", async () => {
  const refusal = { kind: "no_permit", returned: 7 } as const;
  let claimCount = 0;
  const { claimAndSend, inFlight } = startNode({
    ...KIND,
    async claim() {
      claimCount++;
      return refusal;
    },
  });
  const answers = [claimAndSend("us-east", ITEM), claimAndSend("us-east", ITEM)];
  expect(await Promise.all(answers)).toEqual([refusal, refusal]);
  expect([claimCount, inFlight.size]).toEqual([1, 0]);
});
