import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import net from "node:net";
import { RevealedWebhook } from "../../shared/contract/webhook.ts";
import { Figures } from "../../shared/domain/insights/figures.ts";
import { Hosts } from "../../shared/domain/insights/hosts.ts";
import { until } from "../runtime-contract/until.ts";
import { readAs, startTestGateway, type TestGateway, type TestProject } from "../support/gateway.ts";

/** More projects than have room in Postgres at once. */
const FLOODING_PROJECTS = 5;
const READS_OF_A_PROJECT = 12;
/**
 * The neighbour has its turn before so many reads of the others have ended. It should come after one of each; a busy machine may
 * read the neighbour's request late.
 */
const ENDED_MAX = (FLOODING_PROJECTS * READS_OF_A_PROJECT) / 2;
/** 30 days of buckets of 6 hours, in each region. */
const INSIGHT_BUCKETS = 121;

/** The test's acts before a statement about one project is asked, and once it is answered. */
let before: (name: string, projectNo: number) => Promise<void> | undefined;
let after: (name: string, projectNo: number) => void;

let gateway: TestGateway;
let flooders: TestProject[];
let neighbour: TestProject;
/** The endpoint of each project, by the project's number. */
const endpoints = new Map<number, string>();
beforeAll(async () => {
  rest();
  gateway = await startTestGateway({
    async run(act, name, first) {
      if (typeof first !== "number") return act();
      await before(name, first);
      const rows = await act();
      after(name, first);
      return rows;
    },
  });
  flooders = await Promise.all(Array.from({ length: FLOODING_PROJECTS }, () => gateway.addProject("scale")));
  neighbour = await gateway.addProject("scale");
  for (const { no, production: key } of [...flooders, neighbour]) {
    const body = { url: "https://example.com/hook", events: ["job.failed"] };
    endpoints.set(
      no,
      readAs(RevealedWebhook, await gateway.call("POST", "/v2/webhooks", { key, body }), 201).id,
    );
  }
});
afterEach(rest);
afterAll(() => gateway.stop());

function rest(): void {
  before = () => undefined;
  after = () => undefined;
}

/** Sends many requests of one key, each on a connection of its own. `ended` resolves once all have their answers. */
async function flood(key: string, path: string, count: number) {
  const request = `GET ${path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer ${key}\r\nConnection: close\r\n\r\n`;
  const sent: Promise<void>[] = [];
  const ended: Promise<void>[] = [];
  for (let n = 0; n < count; n++) {
    const [isSent, hasEnded] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const socket = net.connect(gateway.port, "127.0.0.1", () =>
      socket.write(request, () => isSent.resolve()),
    );
    socket.resume();
    socket.on("error", isSent.reject);
    socket.on("close", () => hasEnded.resolve());
    sent.push(isSent.promise);
    ended.push(hasEnded.promise);
  }
  await Promise.all(sent);
  return { ended: Promise.all(ended) };
}

/** Sends a request that is answered without Postgres. The gateway has taken all earlier requests of this key by then. */
async function passBehind({ production: key }: TestProject): Promise<void> {
  expect((await gateway.call("GET", "/v2/nothing", { key })).status).toBe(404);
}

const pathOf = ({ no }: TestProject, path: string) => path.replace("{own endpoint}", endpoints.get(no) ?? "");

/** The dearest reads, and the statement of each that gets the project as its first value. */
const READS = [
  ["/v2/jobs?limit=200", "list_jobs_any"],
  ["/v2/jobs/job_01arz3ndektsv4rrffq69g5fav/explain", "find_explained_job"],
  ["/v2/schedules?limit=200", "list_schedules"],
  ["/v2/schedules/sch_01arz3ndektsv4rrffq69g5fav/firings?limit=200", "find_schedule"],
  ["/v2/flows?limit=200", "list_flow_keys"],
  ["/v2/hosts?limit=200", "list_target_hosts"],
  ["/v2/project/insights?period=30d", "find_insights"],
  ["/v2/runs?limit=200", "list_runs"],
  ["/v2/runs?job_id=job_01arz3ndektsv4rrffq69g5fav&limit=200", "list_runs_of_job"],
  ["/v2/bulk?limit=200", "list_bulk"],
  ["/v2/webhooks/{own endpoint}/deliveries?limit=200", "list_deliveries"],
] as const;

describe("of many that read at once, each project has its turn at Postgres", () => {
  test.each(READS)(
    "GET %s waits for one read of each other project, and not for all of theirs",
    async (path, statement) => {
      const held: (() => void)[] = [];
      let begunCount = 0;
      let endedCount = 0;
      let hasTurn = false;
      let isOver = false;
      before = (name, projectNo) => {
        if (name !== statement) return;
        if (projectNo === neighbour.no) {
          hasTurn = true;
          return;
        }
        begunCount++;
        return isOver ? undefined : new Promise((resolve) => held.push(resolve));
      };

      const floods = await Promise.all(
        flooders.map((flooder) => flood(flooder.production, pathOf(flooder, path), READS_OF_A_PROJECT)),
      );
      await Promise.all(flooders.map(passBehind));
      const asked = gateway.call("GET", pathOf(neighbour, path), { key: neighbour.production });
      await passBehind(neighbour);
      // One read after the other ends in Postgres, and another begins in its place.
      while (!hasTurn && endedCount < ENDED_MAX) {
        await until(() => hasTurn || held.length > 0);
        const begunBefore = begunCount;
        held.shift()?.();
        endedCount++;
        await until(() => hasTurn || begunCount > begunBefore);
      }
      isOver = true;
      for (const end of held) end();
      expect((await asked).status).toBeOneOf([200, 404]);
      expect(endedCount).toBeLessThan(ENDED_MAX);

      await Promise.all(floods.map(({ ended }) => ended));
      expect(begunCount).toBe(FLOODING_PROJECTS * READS_OF_A_PROJECT);
    },
  );
});

describe("what a read adds up is added up in pieces, and other requests pass between them", () => {
  test("insights of 30 days", async () => {
    const [flooder] = flooders as [TestProject];
    await addInsights(flooder);
    const path = "/v2/project/insights?period=30d";
    const request = `GET ${path} HTTP/1.1\r\nHost: test\r\n\r\n`;
    const happened: string[] = [];
    let passed: Promise<void> | undefined;
    after = (name) => {
      // The gateway refuses this request without Postgres, however slow Postgres is at the moment. It comes over a socket of this
      // thread, since a client with a thread of its own may wait for a processor.
      if (name === "find_insights") passed ??= gateway.send(request).then(() => void happened.push("passed"));
    };
    before = (name) => {
      // The read asks for hosts once the figures are added up.
      if (name === "find_insight_hosts") happened.push("added up");
      return undefined;
    };
    expect((await gateway.call("GET", path, { key: flooder.production })).status).toBe(200);
    await passed;
    expect(happened).toEqual(["passed", "added up"]);
  });
});

/** Adds the busiest possible insights: runs of every duration in each bucket of each region. */
async function addInsights({ no }: TestProject): Promise<void> {
  const [figures, hosts] = [new Figures(), new Hosts()];
  for (let ms = 1; ms < 3_600_000; ms = Math.ceil(ms * 1.01)) {
    const end = { status: "failed", responseStatus: 503, error: null } as const;
    const run = { host: "example.com", count: 1, end, late: [ms], lateWaited: [ms], durations: [ms] };
    figures.addRuns({ ...run, waitedFor: ["concurrency"] });
  }
  await gateway.query("UPDATE insight_progress SET closed_until = array_fill(now(), ARRAY[4])");
  await gateway.query(
    `INSERT INTO insights (part, project_no, environment, region, level, at, created, succeeded, failed, timed_out, late, late_waited,
                           durations, hosts)
     SELECT 1, $1, 1, region, 3, to_timestamp(floor(extract(epoch FROM now()) / 21600) * 21600) - n * interval '6 h', 9, 9, 9, 9, $2, $3, $4, $5
       FROM generate_series(0, 3) AS region CROSS JOIN generate_series(0, $6::int - 1) AS n`,
    [
      no,
      figures.late.encode(),
      figures.lateWaited.encode(),
      figures.durations.encode(),
      hosts.encode(),
      INSIGHT_BUCKETS,
    ],
  );
}
