import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Webhook } from "standardwebhooks";
import { verifySignature } from "../../shared/client/signature.ts";
import { sampleRun } from "../../shared/contract/event-sample.ts";
import {
  createIdSource,
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  REQUEST_PREFIX,
  SIGNING_SECRET_PREFIX,
} from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import type { KeyCause } from "../../shared/store/resources/audit.ts";
import { oweSample } from "../../shared/store/resources/deliveries-by-hand.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { findSigningSecret, rotateSigningSecret } from "../../shared/store/resources/secrets.ts";
import { rotateWebhookSecret } from "../../shared/store/resources/webhooks.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { type Arrival, startTarget, type Target } from "../support/target.ts";
import { signatureOf, until, untilEnded } from "./support.ts";

let cell: Cell;
let target: Target;
let endpoint: Target;
const ids = createIdSource(randomBytes);
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
  target = startTarget();
  endpoint = startTarget();
});
afterAll(async () => {
  await cell.stop();
  await Promise.all([target.stop(), endpoint.stop()]);
});

const cause = (): KeyCause => ({ requestId: ids.next(REQUEST_PREFIX, cell.clock.now()), keyNo: 0 });

/** Sends a job with a non-ASCII payload. Answers the attempt and the event of its end as the receivers got them. */
async function endJob(project: ProjectRow): Promise<{ attempt: Arrival; event: Arrival }> {
  const payload = `{"name":"Žofie","n":9007199254740993}`;
  const [jobId = ""] = await cell.addJobs(project, [{ targetUrl: target.url, payload }]);
  await untilEnded(cell, project, jobId);
  const isToldOfIt = ({ body }: Arrival) => body.includes(jobId);
  await endpoint.until((arrivals) => arrivals.some(isToldOfIt));
  const attempt = target.arrivals.find((arrival) => arrival.jobId === jobId);
  const event = endpoint.arrivals.find(isToldOfIt);
  if (attempt === undefined || event === undefined) throw new Error("not arrived");
  return { attempt, event };
}

async function oneEndpoint() {
  const project = await cell.addProject();
  return { project, ...(await cell.addEndpoint(project, { url: endpoint.url })) };
}

async function expectVerified({ body, headers }: Arrival, secret: string): Promise<void> {
  expect(new Webhook(secret).verify(body, headers)).toEqual(JSON.parse(body));
  expect(await verifySignature({ body, headers }, { secrets: secret })).toBe(body);
}

describe("the public package and our client verify", () => {
  test("events at endpoints and requests at targets, each under its own secret and no other", async () => {
    const { project, secret } = await oneEndpoint();
    const { attempt, event } = await endJob(project);
    await expectVerified(event, secret);
    await expectVerified(attempt, project.secrets.production);
    expect(attempt.headers["webhook-id"]).toBe(attempt.runId);
    for (const [{ body, headers }, own, other] of [
      [event, secret, project.secrets.production],
      [attempt, project.secrets.production, secret],
    ] as const) {
      expect(() => new Webhook(other).verify(body, headers)).toThrow();
      expect(() => new Webhook(own).verify(body.replace("{", "{ "), headers)).toThrow();
    }
  });

  test("an event under both secrets during a rotation, whose Service-Signature is made with the new one", async () => {
    const { project, id, secret } = await oneEndpoint();
    const newSecret = makeSecret(randomBytes);
    const scope = { projectNo: project.no, environment: "production" as const };
    await rotateWebhookSecret(cell.db, scope, id, cell.seal.seal(newSecret), cause(), null);
    const { event } = await endJob(project);
    expect(event.headers["webhook-signature"]?.split(" ")).toHaveLength(2);
    for (const present of [newSecret, secret]) await expectVerified(event, present);
    expect(event.headers["service-signature"]).toBe(signatureOf(newSecret, event.body));
  });

  test("an attempt of a job under both secrets for a day after a rotation, and under the new one alone from then on", async () => {
    const project = await cell.addProject();
    const scope = { projectNo: project.no, environment: "production" as const };
    const newSecret = makeSecret(randomBytes);
    const sealed = cell.seal.seal(newSecret);
    const id = ids.next(SIGNING_SECRET_PREFIX, cell.clock.now());
    await rotateSigningSecret(cell.db, { ...scope, id, sealed }, cause(), null);
    const send = async () => {
      const [jobId = ""] = await cell.addJobs(project, [{ targetUrl: target.url }]);
      await untilEnded(cell, project, jobId);
      const attempt = target.arrivals.find((arrival) => arrival.jobId === jobId) as Arrival;
      await expectVerified(attempt, newSecret);
      expect(attempt.headers["service-signature"]).toBe(signatureOf(newSecret, attempt.body));
      return attempt;
    };
    const attempt = await send();
    await expectVerified(attempt, project.secrets.production);
    await cell.db.run(
      "test_day_later",
      "UPDATE signing_secrets SET expires_at = expires_at - interval '24 h' WHERE project_no = $1",
      [project.no],
    );
    expect(await findSigningSecret(cell.db, scope)).toMatchObject({ previousExpiresAt: null });
    const signedBy = ({ headers }: Arrival) => headers["webhook-signature"]?.split(" ").length;
    // A node keeps the secrets for some seconds.
    await until(async () => signedBy(await send()) === 1);
  });

  test("a sample, which says that it is one, as no real event does", async () => {
    const { project, id, secret } = await oneEndpoint();
    const eventId = ids.next(EVENT_PREFIX, cell.clock.now());
    const sample = {
      eventId,
      deliveryId: ids.next(DELIVERY_PREFIX, cell.clock.now()),
      apiVersion: project.apiVersion,
      region: "us-east" as const,
      shard: shardOf(project.no, SHARDS_PER_REGION),
      runOf: sampleRun,
    };
    const scope = { projectNo: project.no, environment: "production" as const };
    await oweSample(cell.db, scope, id, sample, cause(), null);
    const isSample = ({ headers }: Arrival) => headers["webhook-id"] === eventId;
    const arrivals = await endpoint.until((all) => all.some(isSample));
    const arrival = arrivals.find(isSample) as Arrival;
    await expectVerified(arrival, secret);
    expect(arrival.headers["service-webhook-test"]).toBe("true");
    expect(JSON.parse(arrival.body)).toMatchObject({
      id: eventId,
      type: "job.succeeded",
      project_id: project.id,
      environment: "production",
      data: { job: { status: "succeeded", attempts: 1 }, run: { status: "succeeded" } },
    });
    const { attempt, event } = await endJob(project);
    expect([event, attempt].map(({ headers }) => headers["service-webhook-test"])).toEqual([
      undefined,
      undefined,
    ]);
  });
});

// A machine without openssl skips the recipe.
describe.skipIf(Bun.which("openssl") === null)("the client's example for openssl", () => {
  const recipe = join(import.meta.dir, "../../shared/client/examples/verify.sh");

  /** The recipe's exit code and output for a request that arrived. */
  function follow({ headers, body }: Pick<Arrival, "headers" | "body">, secret: string) {
    const directory = mkdtempSync(join(tmpdir(), "recipe-"));
    try {
      writeFileSync(join(directory, "body"), body);
      const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
      writeFileSync(join(directory, "headers"), lines.join(""));
      const { exitCode, stdout } = Bun.spawnSync(["bash", recipe, "headers", "body"], {
        cwd: directory,
        env: { PATH: process.env.PATH ?? "", SECRET: secret },
      });
      return { exitCode, said: stdout.toString().trim() };
    } finally {
      rmSync(directory, { recursive: true });
    }
  }
  const VERIFIED = { exitCode: 0, said: "verified" };
  const REFUSED = { exitCode: 1, said: "" };

  test("verifies real deliveries of jobs and of events, with one signature or two", async () => {
    const { project, id, secret } = await oneEndpoint();
    const { attempt, event } = await endJob(project);
    expect(follow(event, secret)).toEqual(VERIFIED);
    expect(follow(attempt, project.secrets.production)).toEqual(VERIFIED);
    const newSecret = makeSecret(randomBytes);
    const scope = { projectNo: project.no, environment: "production" as const };
    await rotateWebhookSecret(cell.db, scope, id, cell.seal.seal(newSecret), cause(), null);
    expect(follow((await endJob(project)).event, newSecret)).toEqual(VERIFIED);
  });

  test("refuses one byte changed in the body, the signatures, the id, the time or the secret", async () => {
    const { project, secret } = await oneEndpoint();
    const { event } = await endJob(project);
    const { headers, body } = event;
    expect(follow({ headers, body: body.replace('"attempts":1', '"attempts":2') }, secret)).toEqual(REFUSED);
    expect(follow({ headers, body: `${body}\n` }, secret)).toEqual(REFUSED);
    expect(follow(event, changed(secret, "whsec_".length))).toEqual(REFUSED);
    for (const [name, at] of [
      ["webhook-signature", 3],
      ["webhook-id", 10],
      ["webhook-timestamp", 9],
    ] as const) {
      const altered = { ...headers, [name]: changed(headers[name] ?? "", at) };
      expect({ name, ...follow({ headers: altered, body }, secret) }).toEqual({ name, ...REFUSED });
    }
  });
});

/** The text with another character at that place. */
const changed = (text: string, at: number) =>
  text.slice(0, at) + (text[at] === "0" ? "1" : "0") + text.slice(at + 1);
