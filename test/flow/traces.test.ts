import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { formatTraceparent, type TraceContext, traceIdOf } from "../../shared/domain/trace.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { type CollectedSpan, startCollector } from "../support/collector.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { type Arrival, startTarget } from "../support/target.ts";
import { makeGate, until } from "./support.ts";

const PAYLOAD_MARK = "payload-0cf3";
const PATH_MARK = "path-91ab";
const HOOK_PATH = `/${PATH_MARK}-hook`;

const collector = startCollector();
const gate = makeGate();
const target = startTarget(async ({ path, attempt }) => {
  if (path.endsWith("slow")) await gate.passed;
  return new Response("", { status: path.endsWith("fail-once") && attempt === 1 ? 500 : 200 });
});
const targetUrl = (name: string) => `http://127.0.0.1:${target.port}/${PATH_MARK}-${name}`;
let database: TestDatabase;
let db: Database;
let nats: NatsServer;
let project: Awaited<ReturnType<typeof createProjectWithKeys>>;
let gateway: ServiceProcess;
let untracedGateway: ServiceProcess;
let worker: ServiceProcess;
let delivery: ServiceProcess;

beforeAll(async () => {
  database = await createMigratedDatabase("traces");
  nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  db = openPatientDatabase(database.url, 2);
  const terms = { name: "traces", plan: "scale", defaultRegion: "us-east" } as const;
  project = await createProjectWithKeys(db, createSeal(secretsKey), terms);
  const untraced = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    DRAIN_TIMEOUT_MS: "5000",
    SHARDS_PER_REGION: "4",
  };
  const asked = { ...untraced, OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, OTEL_TRACES_SAMPLER_ARG: "0" };
  [gateway, untracedGateway, worker, delivery] = await Promise.all([
    startService("gateway", asked),
    startService("gateway", untraced),
    // Firings belong to no client's trace, so the worker must sample them itself.
    startService("worker", { ...asked, OTEL_TRACES_SAMPLER_ARG: "1" }),
    startService("delivery", asked),
  ]);
});
afterAll(async () => {
  for (const service of [gateway, untracedGateway, worker, delivery]) await service.end("SIGKILL");
  await nats.stop();
  await Promise.all([target.stop(), collector.stop()]);
  await db.close();
  await database.drop();
});

const newTrace = (isSampled = true): TraceContext => ({
  traceId: randomBytes(16).toString("hex"),
  spanId: randomBytes(8).toString("hex"),
  isSampled,
});

async function post<T>(
  path: string,
  body: object | null,
  trace?: TraceContext | string,
  at = gateway,
): Promise<T> {
  const traceparent = typeof trace === "object" ? formatTraceparent(trace) : trace;
  const response = await fetchServed(`http://127.0.0.1:${at.port}${path}`, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${project.keys.production}`,
      "Content-Type": "application/json",
      ...(traceparent === undefined ? {} : { traceparent, tracestate: "vendor=secret-state" }),
    },
    ...(body === null ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  if (response.status !== 201) throw new Error(`${response.status} ${text}`);
  return JSON.parse(text) as T;
}

const jobTo = (name: string, fields: object = {}) => ({
  target_url: targetUrl(name),
  payload: { mark: PAYLOAD_MARK },
  retry_policy: { base_seconds: 1, cap_seconds: 1 },
  ...fields,
});
const arrivalsOf = (jobId: string, count: number) =>
  until(() => {
    const arrivals = target.arrivals.filter((arrival) => arrival.jobId === jobId);
    return arrivals.length === count && arrivals;
  });
/** The kind of a request's span at the gateway. */
const SERVER = 2;
const statusOf = ({ attributes }: CollectedSpan) => attributes["http.response.status_code"];
/**
 * A busy gateway may answer a request with 503 and carry it out all the same. `fetchServed` sends it again and gets the
 * answer to the first one. Of a trace's requests only the one that was carried out is left. If that one has a 503,
 * other spans name it as their parent.
 */
function withoutRepeats(spans: CollectedSpan[]): CollectedSpan[] {
  const parents = new Set(parentsOf(spans));
  const refused = spans.filter((span) => span.kind === SERVER && statusOf(span) === 503);
  const carriedOut = refused.find(({ spanId }) => parents.has(spanId));
  if (carriedOut === undefined) return spans.filter((span) => !refused.includes(span));
  return spans.filter((span) => span.kind !== SERVER || span === carriedOut);
}
/** Waits for a trace to have these spans and a request for each attempt. Throws if it has others. */
async function spansOf({ traceId }: { traceId: string }, names: readonly string[]): Promise<CollectedSpan[]> {
  const wanted = [...names, ...names.filter(isAttempt).map(() => "POST")].sort();
  const ofTrace = () => withoutRepeats(collector.spans.filter((span) => span.traceId === traceId));
  await collector.until(() => ofTrace().length >= wanted.length);
  const found = ofTrace();
  expect(found.map(({ name }) => name).sort()).toEqual(wanted);
  return found;
}
const isAttempt = (name: string) => name === "attempt" || name === "delivery";
const named = (spans: CollectedSpan[], name: string) =>
  spans.filter((span) => span.name === name).sort((a, b) => a.startedAt - b.startedAt);
const parentsOf = (spans: CollectedSpan[]) => spans.map(({ parentId }) => parentId);
/** Expects the target's trace headers to name this attempt's request. */
function expectRequest(
  spans: CollectedSpan[],
  attempt: CollectedSpan | undefined,
  arrival: Arrival | undefined,
): void {
  const [request, ...others] = spans.filter(({ parentId }) => parentId === attempt?.spanId);
  expect(others).toEqual([]);
  expect(request).toMatchObject({ name: "POST", kind: 3, service: "jobwheel-delivery" });
  const { traceId = "", spanId = "" } = request ?? {};
  expect(arrival?.headers.traceparent).toBe(formatTraceparent({ traceId, spanId, isSampled: true }));
  expect(arrival?.headers.tracestate).toBeUndefined();
}

describe("the trace of a client", () => {
  test("has the request, both attempts of a retried job and its event's delivery, as the targets see them", async () => {
    const endpoint = await post<{ id: string; secret: string }>("/v2/webhooks", {
      url: `http://127.0.0.1:${target.port}${HOOK_PATH}`,
      events: ["job.succeeded"],
    });
    const client = newTrace();
    const job = await post<{ id: string }>("/v2/jobs", jobTo("fail-once"), client);
    const [first, second] = await arrivalsOf(job.id, 2);
    const [told] = await target.until((arrivals) => arrivals.some(({ path }) => path === HOOK_PATH));
    expect(told).toBeDefined();
    const spans = await spansOf(client, ["POST /v2/jobs", "attempt", "attempt", "delivery"]);
    const [request] = named(spans, "POST /v2/jobs");
    expect(request).toMatchObject({
      service: "jobwheel-gateway",
      kind: SERVER,
      parentId: client.spanId,
      attributes: { "jobwheel.environment": "production" },
    });
    // The 201 may be that of a repeated request.
    const isRequest = (span: CollectedSpan) => span.traceId === client.traceId && span.kind === SERVER;
    await collector.until((all) => all.filter(isRequest).map(statusOf).includes(201));
    const attempts = named(spans, "attempt");
    expect(parentsOf(attempts)).toEqual([request?.spanId ?? "", request?.spanId ?? ""]);
    expect(attempts.map(({ attributes, notes, isError }) => ({ attributes, notes, isError }))).toEqual(
      [first, second].map((arrival, index) => ({
        attributes: {
          "jobwheel.job_id": job.id,
          "jobwheel.run_id": arrival?.runId ?? "",
          "jobwheel.project_no": project.project.no,
          "jobwheel.environment": "production",
          "jobwheel.region": "us-east",
          "jobwheel.attempt": index + 1,
          "jobwheel.lateness_ms": expect.any(Number),
          "jobwheel.outcome": index === 0 ? "failed" : "succeeded",
          "jobwheel.next": index === 0 ? "queued" : "succeeded",
          "http.response.status_code": index === 0 ? 500 : 200,
        },
        notes: ["claimed"],
        isError: index === 0,
      })),
    );
    expectRequest(spans, attempts[0], first);
    expectRequest(spans, attempts[1], second);
    const [sent, ...others] = named(spans, "delivery");
    expect(others).toEqual([]);
    expect(sent).toMatchObject({
      service: "jobwheel-delivery",
      parentId: request?.spanId ?? "",
      attributes: {
        "jobwheel.webhook_id": endpoint.id,
        "jobwheel.job_id": job.id,
        "jobwheel.outcome": "succeeded",
      },
    });
    expectRequest(
      spans,
      sent,
      target.arrivals.find(({ path }) => path === HOOK_PATH),
    );
    // The spans are in the order in which they happened, by one clock.
    for (const span of spans) expect(span.endedAt).toBeGreaterThanOrEqual(span.startedAt);
    expect(attempts[1]?.startedAt).toBeGreaterThanOrEqual(attempts[0]?.startedAt ?? 0);
    // A process's output may arrive later than its messages.
    const line = await until(() =>
      delivery.output.split("\n").find((text) => text.includes("attempt.settled") && text.includes(job.id)),
    );
    expect(JSON.parse(line).traceId).toBe(client.traceId);
  });

  test("has every job of a batch", async () => {
    const client = newTrace();
    const { data } = await post<{ data: { id: string }[] }>(
      "/v2/jobs/batch",
      { jobs: [jobTo("a"), jobTo("b")] },
      client,
    );
    const both = ["attempt", "delivery"];
    const spans = await spansOf(client, ["POST /v2/jobs/batch", ...both, ...both]);
    const [request] = named(spans, "POST /v2/jobs/batch");
    const attempts = named(spans, "attempt");
    expect(parentsOf(attempts)).toEqual([request?.spanId ?? "", request?.spanId ?? ""]);
    expect(attempts.map(({ attributes }) => attributes["jobwheel.job_id"]).sort()).toEqual(
      data.map(({ id }) => id).sort(),
    );
  });

  test("has a manual retry's attempt and its event, and not the earlier ones", async () => {
    const [before, client] = [newTrace(), newTrace()];
    const policy = { retry_policy: { max_attempts: 1 } };
    const job = await post<{ id: string }>("/v2/jobs", jobTo("fail-once", policy), before);
    const [first] = await arrivalsOf(job.id, 1);
    await spansOf(before, ["POST /v2/jobs", "attempt"]);
    await post(`/v2/runs/${first?.runId}/retry`, null, client);
    const [, second] = await arrivalsOf(job.id, 2);
    const spans = await spansOf(client, ["POST /v2/runs/{run_id}/retry", "attempt", "delivery"]);
    const [request] = named(spans, "POST /v2/runs/{run_id}/retry");
    const [attempt] = named(spans, "attempt");
    expect(request?.parentId).toBe(client.spanId);
    expect(attempt?.parentId).toBe(request?.spanId ?? "");
    expectRequest(spans, attempt, second);
    expect(parentsOf(named(spans, "delivery"))).toEqual([request?.spanId ?? ""]);
    await spansOf(before, ["POST /v2/jobs", "attempt"]);
  });

  test("is passed on to the target unchanged by a service that records nothing", async () => {
    const [asked, unasked] = [newTrace(), newTrace(false)];
    const passedOn = await post<{ id: string }>("/v2/jobs", jobTo("a"), unasked);
    const [arrival] = await arrivalsOf(passedOn.id, 1);
    expect(arrival?.headers.traceparent).toBe(formatTraceparent(unasked));
    // A recording node goes on with the trace of a gateway that records nothing.
    const job = await post<{ id: string }>("/v2/jobs", jobTo("a"), asked, untracedGateway);
    await arrivalsOf(job.id, 1);
    const spans = await spansOf(asked, ["attempt", "delivery"]);
    expect(parentsOf(named(spans, "attempt"))).toEqual([asked.spanId]);
  });
});

describe("a job in no client's trace", () => {
  const none = `00-${"0".repeat(32)}-00f067aa0ba902b7-01`;

  test.each([undefined, none, "00-short-01"])(
    "is accepted with %p, and its attempts share a trace by its id",
    async (header) => {
      const job = await post<{ id: string }>("/v2/jobs", jobTo("fail-once"), header);
      const places = (await arrivalsOf(job.id, 2)).map(({ headers }) => headers.traceparent ?? "");
      expect(new Set(places).size).toBe(2);
      for (const place of places)
        expect(place).toMatch(new RegExp(`^00-${traceIdOf(job.id)}-[0-9a-f]{16}-00$`));
      const [row] = await db.run<{ trace: Buffer | null }>(
        "trace_of",
        "SELECT trace FROM jobs WHERE target_url = $1 ORDER BY id DESC LIMIT 1",
        [targetUrl("fail-once")],
      );
      expect(row?.trace).toBeNull();
      expect(collector.spans.filter(({ traceId }) => traceId === traceIdOf(job.id))).toEqual([]);
    },
  );

  test("that a schedule fired has a trace that begins with the firing", async () => {
    const schedule = await post<{ id: string }>("/v2/schedules", {
      name: "s",
      cron: "* * * * *",
      target_url: targetUrl("a"),
    });
    // The statement brings the next instant forward, which could be a minute away.
    await db.run(
      "soon",
      "UPDATE schedules SET next_run_at = date_trunc('second', now()) + interval '1 s'",
      [],
    );
    const [firing] = await collector.until((spans) => spans.some(({ name }) => name === "fire schedule"));
    expect(firing).toBeDefined();
    const [fired] = named(collector.spans, "fire schedule");
    const jobId = String(fired?.attributes["jobwheel.job_id"]);
    expect(fired).toMatchObject({
      service: "jobwheel-worker",
      parentId: null,
      traceId: traceIdOf(jobId),
      attributes: { "jobwheel.schedule_id": schedule.id, "jobwheel.region": "us-east" },
    });
    const [arrival] = await arrivalsOf(jobId, 1);
    const spans = await spansOf({ traceId: traceIdOf(jobId) }, ["fire schedule", "attempt", "delivery"]);
    const [attempt] = named(spans, "attempt");
    expect(attempt?.parentId).toBe(fired?.spanId ?? "");
    expectRequest(spans, attempt, arrival);

    const client = newTrace();
    await post(`/v2/schedules/${schedule.id}/run`, null, client);
    const byHand = await spansOf(client, ["POST /v2/schedules/{schedule_id}/run", "attempt", "delivery"]);
    const [request] = named(byHand, "POST /v2/schedules/{schedule_id}/run");
    expect(parentsOf(named(byHand, "attempt"))).toEqual([request?.spanId ?? ""]);
  });
});

describe("the spans sent to the collector", () => {
  test("arrive before a draining node ends", async () => {
    const client = newTrace();
    const job = await post<{ id: string }>("/v2/jobs", jobTo("slow"), client);
    const [arrival] = await arrivalsOf(job.id, 1);
    const ended = delivery.end("SIGTERM");
    gate.open();
    expect(await ended).toBe(0);
    const spans = collector.spans.filter(({ traceId }) => traceId === client.traceId);
    const [attempt] = named(spans, "attempt");
    expect(attempt?.attributes["jobwheel.outcome"]).toBe("succeeded");
    expectRequest(spans, attempt, arrival);
  });

  test("hold no payload, key, secret or target URL", async () => {
    const told = collector.texts.join("\n");
    expect(told).toContain("jobwheel.job_id");
    const { rows } = await db.drizzle.execute("SELECT url FROM webhooks");
    expect(rows).toHaveLength(1);
    const kept = [
      PAYLOAD_MARK,
      PATH_MARK,
      `:${target.port}`,
      "secret-state",
      ...Object.values(project.keys),
      ...Object.values(project.signingSecrets),
      "whsec_",
      "Bearer",
    ];
    for (const text of kept) expect(told).not.toContain(text);
  });
});
