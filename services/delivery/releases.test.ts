import { afterAll, beforeAll, expect, test } from "bun:test";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import type { Answer } from "../../shared/bus/messages.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { createLog } from "../../shared/platform/log.ts";
import { parkAttempts } from "../../shared/store/queue/parking.ts";
import { startStore, type TestStore, until } from "../../shared/store/test-support.ts";
import { RequestsPerHost } from "./concurrency.ts";
import { createReleases } from "./releases.ts";
import { createStoreRetries } from "./retry-until-answered.ts";

const log = createLog({ name: "test", level: "error" });
let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

async function park(projectNo: number, count: number, host: string): Promise<string[]> {
  const ids = await store.addJobs(projectNo, count);
  const url = `https://${host}/hook`;
  const common = { projectNo, environment: "production", region: "us-east", attempt: 1, host, url } as const;
  const parked = await parkAttempts(
    store.db,
    "jobs",
    ids.map((id) => ({ ...common, id })),
  );
  expect(parked).toEqual(ids.map(() => "parked"));
  return ids;
}

const ONE_PER_HOST = { attemptsMax: 10, perHostMax: 1 };
/** The releases of a node that sends one request at a time to a host. `answer` gives the answers to its claims. */
function releasesOf(
  answer: (id: string) => Answer,
  hosts = new RequestsPerHost(ONE_PER_HOST),
  db = store.db,
) {
  return createReleases(
    { db, bus: createInProcessBus(log) },
    {
      regions: REGIONS,
      hosts,
      room: () => 10,
      claimAndSend: async (_, { id }) => answer(id),
      retries: createStoreRetries(log, () => 0),
    },
  );
}

test("a look at all hosts does not wait until one host's backlog is sent", async () => {
  const COUNT = 300;
  await park(await store.addProject(), COUNT, "busy.example");
  let sentCount = 0;
  const releases = releasesOf(() => {
    sentCount++;
    return { kind: "granted" };
  });
  await releases.tick();
  expect(sentCount).toBeLessThan(COUNT);
  await until(() => sentCount === COUNT);
});

test("a parked attempt that is refused for want of a permit leaves its place to one that has a permit, in the same look", async () => {
  const HOST = "refused.example";
  const refused = new Set<string>();
  for (let count = 0; count < 3; count++) {
    const project = await store.addProject({ concurrency: 1 });
    await store.query("UPDATE flows SET production_webhooks = 1 WHERE project_no = $1", [project]);
    for (const id of await park(project, 1, HOST)) refused.add(id);
  }
  const [good] = await park(await store.addProject(), 1, HOST);
  const asked: string[] = [];
  const releases = releasesOf((id) => {
    asked.push(id);
    return refused.has(id) ? { kind: "no_permit", returned: 0 } : { kind: "granted" };
  });
  await releases.tick();
  await until(() => asked.includes(good ?? ""));
  // No other look has begun: each refused one was asked at most once.
  expect(asked.length).toBeLessThanOrEqual(refused.size + 1);
});

test("blind claims that come one after the other do not keep what is parked at a host from being sent", async () => {
  const HOST = "beside-blind.example";
  const ids = await park(await store.addProject(), 3, HOST);
  const hosts = new RequestsPerHost({ attemptsMax: 10, perHostMax: 10 });
  hosts.lower([{ host: HOST, requests: 1 }]);
  const asked: string[] = [];
  let isBusy = true;
  let blindCount = 0;
  let blindWithAsked = 0;
  const claimBlindly = async () => {
    while (isBusy) {
      if (hosts.mayClaimBlindly()) {
        hosts.add(null);
        blindCount++;
        await Bun.sleep(3);
        hosts.delete(null);
        blindCount--;
      } else {
        await Bun.sleep(1);
      }
    }
  };
  const traffic = [claimBlindly(), claimBlindly(), claimBlindly()];
  const releases = releasesOf((id) => {
    if (ids.includes(id)) {
      blindWithAsked += blindCount;
      asked.push(id);
    }
    return { kind: "granted" };
  }, hosts);
  try {
    await releases.tick();
    await until(() => asked.length === ids.length);
  } finally {
    isBusy = false;
    await Promise.all(traffic);
  }
  expect(blindWithAsked).toBe(0);
});

test("jobs and deliveries both have turns at each host, whichever hosts are looked at in between", async () => {
  const [one, other] = ["one-kind.example", "other-kind.example"];
  const project = await store.addProject();
  for (const host of [one, other]) await park(project, 40, host);
  const looks: string[] = [];
  const db: typeof store.db = {
    ...store.db,
    run(name, text, values) {
      if (name.startsWith("release_") && values[0] === other) looks.push(name);
      return store.db.run(name, text, values);
    },
  };
  const asked: string[] = [];
  const releases = releasesOf(
    (id) => {
      asked.push(id);
      return { kind: "early", waitMs: 1 };
    },
    new RequestsPerHost(ONE_PER_HOST),
    db,
  );
  for (const host of [one, other]) releases.parked(host);
  await until(() => asked.length === 2);
  for (let turn = 0; turn < 60 && !looks.includes("release_webhooks"); turn++) {
    releases.freed(turn % 2 === 0 ? one : other);
    await until(() => asked.length === 3 + turn);
    await Bun.sleep(10);
  }
  expect(looks).toContain("release_webhooks");
});

test("an attempt that is parked during a look at all hosts is sent when a place comes free", async () => {
  const HOST = "during-look.example";
  const read = Promise.withResolvers<void>();
  const arrival = Promise.withResolvers<void>();
  const db: typeof store.db = {
    ...store.db,
    async run<Row>(name: string, text: string, values: unknown[]) {
      const rows = await store.db.run<Row>(name, text, values);
      if (name === "list_parked_jobs") {
        read.resolve();
        await arrival.promise;
      }
      return rows;
    },
  };
  const asked: string[] = [];
  const answer = (id: string): Answer => {
    asked.push(id);
    return { kind: "granted" };
  };
  const hosts = new RequestsPerHost(ONE_PER_HOST);
  hosts.add(HOST);
  const releases = releasesOf(answer, hosts, db);
  const look = releases.tick();
  await read.promise;
  const [id] = await park(await store.addProject(), 1, HOST);
  releases.parked(HOST);
  arrival.resolve();
  await look;
  await until(() => !releases.isBusy);
  hosts.delete(HOST);
  releases.freed(HOST);
  expect(releases.isBusy).toBe(true);
  await until(() => asked.includes(id ?? ""));
});
