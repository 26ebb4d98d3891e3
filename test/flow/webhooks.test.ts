import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Webhook } from "standardwebhooks";
import { EVENT_PREFIX, retypeId } from "../../shared/domain/ids.ts";
import { cancelJob } from "../../shared/store/resources/jobs-by-hand.ts";
import { keyCause } from "../support/cause.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";
import { signatureOf, untilEnded } from "./support.ts";

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
});
afterAll(() => cell.stop());

describe("an endpoint", () => {
  test("gets one event for each job that ends, signed so that the public package verifies it", async () => {
    const target = startTarget(({ path }) => new Response("", { status: path === "/hook" ? 200 : 500 }));
    const endpoint = startTarget();
    const project = await cell.addProject();
    const { secret } = await cell.addEndpoint(project, { url: endpoint.url });
    const [good = "", bad = ""] = await cell.addJobs(project, [
      { targetUrl: target.url, tags: ["customer:4711", "b"] },
      { targetUrl: target.url.replace("hook", "bad"), maxAttempts: 2 },
    ]);
    await untilEnded(cell, project, good);
    await untilEnded(cell, project, bad);
    await endpoint.until((arrivals) => arrivals.length === 2);
    for (const { headers, body } of endpoint.arrivals) {
      const event = new Webhook(secret).verify(body, headers) as {
        id: string;
        type: string;
        data: {
          job: { id: string; status: string; attempts: number; tags?: string[] };
          run: { id: string; attempt: number };
        };
      };
      expect(headers["webhook-id"]).toBe(event.id);
      expect(headers["service-signature"]).toBe(signatureOf(secret, body));
      const { job, run } = event.data;
      expect(event.id).toBe(retypeId(run.id, EVENT_PREFIX));
      const isGood = job.id === good;
      expect(event.type).toBe(isGood ? "job.succeeded" : "job.failed");
      expect(job.tags).toEqual(isGood ? ["customer:4711", "b"] : undefined);
      expect(job).toMatchObject({ status: isGood ? "succeeded" : "failed", attempts: isGood ? 1 : 2 });
      const last = (await cell.runs(project, job.id)).at(-1);
      expect(run).toMatchObject({ id: last?.id, attempt: last?.attempt });
    }
    await Promise.all([target.stop(), endpoint.stop()]);
  });

  test("hears of a canceled job if it asks for that, signed like any other event", async () => {
    const endpoint = startTarget();
    const project = await cell.addProject();
    const { secret } = await cell.addEndpoint(project, { url: endpoint.url, events: ["job.canceled"] });
    const [id = ""] = await cell.addJobs(project, [
      { targetUrl: endpoint.url, runAt: cell.clock.now() + 3_600_000 },
    ]);
    await cancelJob(cell.db, { projectNo: project.no, environment: "production" }, id, keyCause());
    const [arrival] = await endpoint.until((arrivals) => arrivals.length === 1);
    const event = new Webhook(secret).verify(arrival?.body ?? "", arrival?.headers ?? {});
    expect(event).toMatchObject({
      type: "job.canceled",
      data: { job: { id, status: "canceled" }, run: null },
    });
    await endpoint.stop();
  });
});
