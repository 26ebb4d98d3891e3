import { describe, expect, test } from "bun:test";
import { createLog } from "../../shared/platform/log.ts";
import { StoreUnavailable } from "../../shared/store/database/database.ts";
import type { Claimed, KeyPlaces } from "../../shared/store/queue/claim.ts";
import type { OwedItem } from "./attempt-kind.ts";
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
  keyOf: (): KeyPlaces | null => null,
  send: async () => ({}) as never,
  mayTakeNext: () => true,
  settle: async () => null,
};

function startNode(kind: typeof KIND) {
  const inFlight = new InFlight(NODE_LIMITS);
  const hosts = new RequestsPerHost(NODE_LIMITS);
  const freed: string[] = [];
  const begun: [string, boolean][] = [];
  let isFull = false;
  const claimAndSend = createClaimAndSend(
    { clock: { now: Date.now, stop: () => undefined }, log },
    {
      jobs: kind,
      webhooks: kind,
      inFlight,
      hosts,
      room: () => (isFull ? 0 : inFlight.room),
      retries: createStoreRetries(log, () => inFlight.size),
      onNext: ({ id }, wasQueued) => begun.push([id, wasQueued]),
      onRoom: () => undefined,
      onParked: () => undefined,
      onFreed: (host) => freed.push(host),
      onDeclaredDead: () => undefined,
    },
  );
  const takenAt = () => NODE_LIMITS.perHostMax - hosts.roomOf(HOST);
  const fill = () => {
    isFull = true;
  };
  return { claimAndSend, inFlight, hosts, freed, begun, takenAt, fill };
}

test("an attempt leaves its host's place once it is sent, and stays in flight until it is settled", async () => {
  const [sending, settling] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const { claimAndSend, inFlight, freed, takenAt } = startNode({
    ...KIND,
    async send() {
      await sending.promise;
      return {} as never;
    },
    settle: () => settling.promise.then(() => null),
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

describe("more claims than any host could take", () => {
  /** A node with as many claims under way as may be made blindly beside `inFlight` requests to one host, and ten more attempts. */
  function startFullNode(inFlight: number) {
    let [claimCount, locateCount] = [0, 0];
    const claimed: ((answer: Claimed<never>) => void)[] = [];
    const { claimAndSend, hosts } = startNode({
      ...KIND,
      async locate() {
        locateCount++;
        return null;
      },
      claim() {
        claimCount++;
        const { promise, resolve } = Promise.withResolvers<Claimed<never>>();
        claimed.push(resolve);
        return promise;
      },
    });
    for (let count = 0; count < inFlight; count++) hosts.add(HOST);
    const most = NODE_LIMITS.perHostMax - inFlight;
    const claim = (n: number) => claimAndSend("us-east", { ...ITEM, id: `job_${n}` });
    const answers = Array.from({ length: most + 10 }, (_, n) => claim(n));
    const counts = async () => {
      await new Promise((resolve) => setImmediate(resolve));
      await Bun.sleep(0);
      return { claimCount, locateCount };
    };
    return { answers, claim, claimed, counts, hosts, most };
  }

  test("wait for the end of others, in their order, and nothing is looked up", async () => {
    const { answers, claim, claimed, counts, most } = startFullNode(NODE_LIMITS.perHostMax / 4);
    expect(await counts()).toEqual({ claimCount: most, locateCount: 0 });
    for (const resolve of claimed.splice(0, 4)) resolve({ kind: "gone" });
    await answers[3];
    // This one comes before those that wait have been told.
    answers.push(claim(most + 10));
    expect(await counts()).toEqual({ claimCount: most + 4, locateCount: 0 });
    claimed.at(-1)?.({ kind: "early", waitMs: 7 });
    expect(await answers[most + 3]).toEqual({ kind: "early", waitMs: 7 });
    for (let turn = 0; turn < 3; turn++) {
      for (const resolve of claimed.splice(0)) resolve({ kind: "gone" });
      await counts();
    }
    expect((await Promise.all(answers)).filter((answer) => answer?.kind === "gone")).toHaveLength(most + 10);
    expect(await counts()).toEqual({ claimCount: most + 11, locateCount: 0 });
  });

  test("are looked up once no others might end", async () => {
    const { claimed, counts, hosts, most } = startFullNode(NODE_LIMITS.perHostMax / 2 - 2);
    // More requests keep the node from blind claims, whichever claims end.
    for (let count = 0; count < 100; count++) hosts.add(HOST);
    for (const resolve of claimed.splice(0, 3)) resolve({ kind: "gone" });
    expect(await counts()).toEqual({ claimCount: most + 10, locateCount: 10 });
  });

  test("are looked up while a host has half of its requests in flight, and while settlements have the places", async () => {
    const busy = startFullNode(NODE_LIMITS.perHostMax / 2);
    expect(await busy.counts()).toMatchObject({ locateCount: 10 });
    const settling = startFullNode(NODE_LIMITS.perHostMax);
    for (let count = 0; count < NODE_LIMITS.perHostMax; count++) {
      settling.hosts.addSettlement();
      settling.hosts.delete(HOST);
    }
    await settling.counts();
    void settling.claim(99);
    expect(await settling.counts()).toMatchObject({ locateCount: 11 });
  });
});

describe("an attempt that a settlement has started", () => {
  const NEXT = { ...ITEM, id: "job_next", region: "us-east", environment: "production" } as const;
  const nextOf = (isLeft: () => boolean) => ({ item: NEXT, attempt: {} as never, isLeft });

  /** A node whose first settlement starts NEXT. `sent` has what was sent, and `takesNext` what each settlement was told. */
  function startNodeWithNext(wish: Partial<typeof KIND> = {}, isLeft = () => true) {
    const sent: string[] = [];
    const takesNext: boolean[] = [];
    const settled = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const node = startNode({
      ...KIND,
      claim: async () => ({ kind: "granted", attempt: {} as never }),
      async send(item: OwedItem) {
        sent.push(item.id);
        return {} as never;
      },
      async settle(_: never, mayTake: boolean) {
        const place = takesNext.push(mayTake) - 1;
        await settled[place]?.promise;
        return place === 0 && mayTake ? nextOf(isLeft) : null;
      },
      ...wish,
    } as never);
    const endSettlement = async (place: number) => {
      settled[place]?.resolve();
      await Bun.sleep(0);
    };
    return { ...node, sent, takesNext, endSettlement };
  }

  test("is sent and settled, and counts as in flight from the settlement on", async () => {
    const { claimAndSend, inFlight, sent, takesNext, takenAt, endSettlement } = startNodeWithNext();
    await claimAndSend("us-east", ITEM);
    await Bun.sleep(0);
    expect([sent, takesNext, takenAt()]).toEqual([[ITEM.id], [true], 0]);
    await endSettlement(0);
    expect([sent, inFlight.size]).toEqual([[ITEM.id, NEXT.id], 1]);
    expect(await claimAndSend("us-east", NEXT)).toEqual({ kind: "gone" });
    await endSettlement(1);
    expect([sent, takesNext, inFlight.size]).toEqual([[ITEM.id, NEXT.id], [true, true], 0]);
  });

  test("is not asked for while the node takes nothing, or some host has room for one request only", async () => {
    for (const limit of [
      ({ fill }) => fill(),
      ({ hosts }) => hosts.lower([{ host: HOST, requests: 1 }]),
    ] as ((node: ReturnType<typeof startNodeWithNext>) => void)[]) {
      const sending = Promise.withResolvers<never>();
      const node = startNodeWithNext({ send: () => sending.promise });
      await node.claimAndSend("us-east", ITEM);
      limit(node);
      sending.resolve({} as never);
      await node.endSettlement(0);
      expect([node.takesNext, node.inFlight.size]).toEqual([[false], 0]);
    }
  });

  test("is sent once if a claim of it is under way", async () => {
    const claimed = Promise.withResolvers<Claimed<never>>();
    let isLeft = true;
    const node = startNodeWithNext(
      {
        claim: ((item: OwedItem) =>
          item.id === NEXT.id ? claimed.promise : Promise.resolve({ kind: "granted", attempt: {} })) as never,
      },
      () => isLeft,
    );
    await node.claimAndSend("us-east", ITEM);
    const claiming = node.claimAndSend("us-east", NEXT);
    await node.endSettlement(0);
    expect(node.sent).toEqual([ITEM.id]);
    // The claim of an attempt that is started on the node is granted, and takes it.
    isLeft = false;
    claimed.resolve({ kind: "granted", attempt: {} as never });
    expect(await claiming).toEqual({ kind: "granted" });
    await node.endSettlement(1);
    expect([node.sent, node.inFlight.size]).toEqual([[ITEM.id, NEXT.id], 0]);
  });

  test("waits until the node has settled an earlier attempt of its job", async () => {
    const node = startNodeWithNext();
    await node.claimAndSend("us-east", ITEM);
    node.inFlight.add(NEXT.id, NEXT.projectNo, {
      attempt: NEXT.attempt - 1,
      answer: Promise.resolve({ kind: "granted" }),
    });
    await node.endSettlement(0);
    expect(node.sent).toEqual([ITEM.id]);
    node.inFlight.delete(NEXT.id, NEXT.projectNo);
    while (node.sent.length < 2) await Bun.sleep(1);
    expect(node.sent).toEqual([ITEM.id, NEXT.id]);
  });
});

describe("while a node has all places of a flow key in flight", () => {
  const HASH = 7;
  const keyed = (id: string, dueAt = 0) => ({ ...ITEM, id, dueAt, isGated: true as const, keyHash: HASH });

  /** A node that hands places on. Each attempt ends when the test says so, and the one that it names starts in its place. */
  async function startKeyedNode(claimed: string[] = []) {
    const ends = new Map<string, (next: string | null) => void>();
    const node = startNode({
      ...KIND,
      async claim(item: OwedItem) {
        claimed.push(item.id);
        return { kind: "granted", attempt: { id: item.id } as never };
      },
      keyOf: () => ({ hash: HASH, count: 1 }),
      send: async (_: OwedItem, granted: never) => granted,
      async settle({ id }: { id: string }) {
        const { promise, resolve } = Promise.withResolvers<string | null>();
        ends.set(id, resolve);
        const next = await promise;
        if (next === null) return null;
        const item = { ...keyed(next), region: "us-east", environment: "production" };
        return { item, attempt: { id: next }, isLeft: () => true };
      },
    } as never);
    const end = async (id: string, next: string | null = null) => {
      ends.get(id)?.(next);
      await Bun.sleep(0);
    };
    await node.claimAndSend("us-east", keyed("job_first"));
    await Bun.sleep(0);
    await end("job_first", "job_a");
    return { ...node, claimed, end };
  }

  test("further attempts of the key are queued once, and one of them starts in the place of another", async () => {
    const { claimAndSend, claimed, end, inFlight, begun } = await startKeyedNode();
    expect(await claimAndSend("us-east", keyed("job_b"))).toMatchObject({ kind: "queued" });
    expect(await claimAndSend("us-east", keyed("job_c"))).toMatchObject({ kind: "queued" });
    await end("job_a", "job_b");
    expect([claimed, inFlight.find("job_b") !== undefined, begun]).toEqual([
      ["job_first"],
      true,
      [
        ["job_a", false],
        ["job_b", true],
      ],
    ]);
    expect(await claimAndSend("us-east", keyed("job_c"))).toEqual({ kind: "granted" });
  });

  test("the first of those that are queued is claimed once a place comes free, and the others stay behind it", async () => {
    const { claimAndSend, claimed, end, begun } = await startKeyedNode();
    for (const [id, dueAt] of [
      ["job_b", 2],
      ["job_c", 1],
      ["job_d", 3],
    ] as const)
      await claimAndSend("us-east", keyed(id, dueAt));
    await end("job_a");
    expect(claimed).toEqual(["job_first", "job_c"]);
    await end("job_c");
    await end("job_b");
    expect(claimed).toEqual(["job_first", "job_c", "job_b", "job_d"]);
    expect(begun.slice(1)).toEqual([
      ["job_c", true],
      ["job_b", true],
      ["job_d", true],
    ]);
  });

  test("attempts that come with the first one of a key wait for its claim", async () => {
    const { claimAndSend, claimed, end } = await startKeyedNode();
    await end("job_a");
    const answers = ["job_b", "job_c", "job_d"].map((id) => claimAndSend("us-east", keyed(id)));
    expect(await Promise.all(answers)).toMatchObject([
      { kind: "granted" },
      { kind: "queued" },
      { kind: "queued" },
    ]);
    expect(claimed).toEqual(["job_first", "job_b"]);
  });
});
