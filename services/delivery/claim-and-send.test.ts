import { expect, test } from "bun:test";
import { createLog } from "../../shared/platform/log.ts";
import { createClaimAndSend } from "./claim-and-send.ts";
import { InFlight, NODE_LIMITS, RequestsPerHost } from "./concurrency.ts";
import { createStoreRetries } from "./retry-until-answered.ts";

const HOST = "target.example";
const log = createLog({ name: "test", level: "silent" });

test("an attempt leaves its host's place once it is sent, and stays in flight until it is settled", async () => {
  const inFlight = new InFlight(NODE_LIMITS);
  const hosts = new RequestsPerHost(NODE_LIMITS);
  const [sending, settling] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const freed: string[] = [];
  const kind = {
    locate: async () => null,
    park: async () => "gone" as const,
    claim: async () => ({ kind: "granted" as const, attempt: {} as never }),
    urlOf: () => `https://${HOST}/hook`,
    async send() {
      await sending.promise;
      return {} as never;
    },
    settle: () => settling.promise,
  };
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
  const item = {
    projectNo: 1,
    flowClass: "production jobs",
    id: "job_1",
    attempt: 1,
    dueAt: 0,
    shard: 3,
  } as const;
  const takenAt = () => NODE_LIMITS.perHostMax - hosts.roomOf(HOST);
  expect(await claimAndSend("us-east", item)).toEqual({ kind: "granted" });
  expect(await claimAndSend("us-east", item)).toBeNull();
  expect([takenAt(), inFlight.size]).toEqual([1, 1]);
  sending.resolve();
  await Bun.sleep(0);
  expect([takenAt(), inFlight.size, freed]).toEqual([0, 1, []]);
  settling.resolve();
  await Bun.sleep(0);
  expect([takenAt(), inFlight.size, freed]).toEqual([0, 0, [HOST]]);
});
