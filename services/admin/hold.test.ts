import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { REGIONS } from "../../shared/domain/scope.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { untilEnded } from "../../test/flow/support.ts";
import { until } from "../../test/runtime-contract/until.ts";
import { type Cell, startCell } from "../../test/support/cell.ts";
import { startStopwatch } from "../../test/support/stopwatch.ts";
import { startTarget, type Target } from "../../test/support/target.ts";
import { runCommandLine } from "./command-line.ts";

setDefaultTimeout(600_000);

const ARRIVED_MS_MAX = 180_000;

let cell: Cell;
let target: Target;
let endpoint: Target;
/** It leaves out the time for which the machine has held up this process, node and test. */
const stopwatch = startStopwatch();
/** When the node asked for the hosts' limits, when that ended, and whether it was answered. */
const limitReads: { begunAt: number; endedAt: number; isAnswered: boolean }[] = [];
const noting = (db: Database): Database => ({
  ...db,
  async run<Row>(name: string, text: string, values: unknown[]) {
    const begunAt = stopwatch.read();
    let isAnswered = false;
    try {
      const rows = await db.run<Row>(name, text, values);
      isAnswered = true;
      return rows;
    } finally {
      if (name === "list_host_limits") limitReads.push({ begunAt, endedAt: stopwatch.read(), isAnswered });
    }
  },
});
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery({ db: noting(cell.serviceDb) });
  target = startTarget();
  endpoint = startTarget();
});
afterAll(async () => {
  stopwatch.stop();
  await cell.stop();
  await Promise.all([target.stop(), endpoint.stop()]);
});

const admin = async (...words: string[]) => {
  const answer = await runCommandLine(words, { DATABASE_URL: cell.url });
  return { ...answer, stdout: answer.stdout.trim() };
};
const arrivedOf = (ids: readonly string[]) =>
  target.arrivals.filter(({ jobId }) => ids.includes(jobId)).length;

/**
 * A delivery node hears of a host within 5 s. A read that was under way already does not count, nor one that failed, however
 * slow they are.
 */
async function untilHostsAreHeardOf(): Promise<void> {
  const heldAt = stopwatch.read();
  const next = () => limitReads.findIndex(({ begunAt, isAnswered }) => begunAt > heldAt && isAnswered);
  await until(() => next() >= 0);
  const freeAt = Math.max(heldAt, limitReads[next() - 1]?.endedAt ?? 0);
  expect((limitReads[next()]?.begunAt ?? 0) - freeAt).toBeLessThan(5_000);
}

/** Lets another project work while something is held, for so long that held jobs cannot be merely late. */
async function untilOthersGoOn(): Promise<void> {
  const other = await cell.addProject();
  for (let round = 0; round < 3; round++) {
    const ids = await cell.addJobs(other, [{ targetUrl: target.url, runAt: cell.clock.now() + 1_000 }]);
    await target.until(() => arrivedOf(ids) === 1);
  }
}

describe("what is held", () => {
  test.each(["project", "region", "host"] as const)(
    "by %s is not sent, while the rest goes on, and all of it is once it is resumed",
    async (kind) => {
      const project = await cell.addProject();
      const elsewhere = startTarget();
      await cell.addEndpoint(project, {
        url: kind === "host" ? elsewhere.url.replace("127.0.0.1", "localhost") : endpoint.url,
      });
      const subject = { project: project.id, region: "eu-central", host: "localhost" }[kind];
      const targetUrl = kind === "host" ? target.url.replace("127.0.0.1", "localhost") : target.url;
      const held = await admin("hold", `--${kind}`, subject, "--json");
      expect(JSON.parse(held.stdout)).toMatchObject({ held: true });
      expect(JSON.parse((await admin("hold", "list", "--json")).stdout).data).toMatchObject([
        { kind, name: subject },
      ]);
      // A hold of a project or a region binds the next claim.
      if (kind === "host") await untilHostsAreHeardOf();
      const endpointCount = endpoint.arrivals.length;
      const region = kind === "region" ? "eu-central" : "us-east";
      const ids = await cell.addJobs(
        project,
        Array.from({ length: 20 }, () => ({ targetUrl, region }) as const),
      );
      await untilOthersGoOn();
      expect(arrivedOf(ids)).toBe(0);
      expect(await admin("resume", `--${kind}`, subject)).toMatchObject({ code: 0 });
      await target.until(() => arrivedOf(ids) === 20, ARRIVED_MS_MAX);
      if (kind === "host") await elsewhere.until((arrivals) => arrivals.length === 20, ARRIVED_MS_MAX);
      else await endpoint.until((arrivals) => arrivals.length === endpointCount + 20, ARRIVED_MS_MAX);
      await elsewhere.stop();
    },
  );

  test("is the whole cell if nothing is named, webhooks included", async () => {
    const project = await cell.addProject();
    await cell.addEndpoint(project, { url: endpoint.url });
    let isHeld = Promise.resolve({ code: 1, stdout: "", stderr: "" });
    const slow = startTarget(async () => {
      // The job ends after the hold: its event has to wait.
      isHeld = admin("hold", "--json");
      await isHeld;
      return new Response("ok");
    });
    const before = endpoint.arrivals.length;
    const [id = ""] = await cell.addJobs(project, [{ targetUrl: slow.url }]);
    await slow.until((arrivals) => arrivals.length === 1);
    expect(JSON.parse((await isHeld).stdout)).toEqual({ regions: [...REGIONS], held: true });
    const [next = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
    expect(await untilEnded(cell, project, id)).toMatchObject({ status: "succeeded" });
    for (let look = 0; look < 30; look++) {
      expect(endpoint.arrivals.length).toBe(before);
      await Bun.sleep(100);
    }
    expect(arrivedOf([next])).toBe(0);
    expect((await admin("resume")).stdout).toBe("the whole cell goes on");
    await endpoint.until((arrivals) => arrivals.length === before + 2);
    await slow.stop();
  });
});

test("a hold of two things at once, of no project and of no host is refused", async () => {
  for (const words of [
    ["--project", `prj_${"0".repeat(26)}`],
    ["--project", "x"],
    ["--region", "mars"],
    ["--host", "https://x.example/"],
    ["--region", "us-east", "--host", "x.example"],
  ]) {
    expect((await admin("hold", ...words)).code).toBe(1);
  }
  expect(await cell.db.run("held", "SELECT region FROM held_regions", [])).toEqual([]);
});
