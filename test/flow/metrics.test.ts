import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { createLog } from "../../shared/platform/log.ts";
import { openCellSeal } from "../../shared/process/cell-seal.ts";
import { openDatabase } from "../../shared/store/database/database.ts";
import { listMetrics } from "../deploy/metrics-page.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget } from "../support/target.ts";

setDefaultTimeout(900_000);

const NAMES = ["gateway", "worker", "delivery"] as const;
type Name = (typeof NAMES)[number];
const SHARDS_PER_REGION = 4;
const JOBS = 3;
const LATE_SECONDS_MAX = 60;
const SEEN_MS_MAX = 120_000;
const LOOK_EVERY_MS = 50;
/** An attempt that nobody has counted by then is never counted. */
const COUNTED_MS_MAX = 15_000;
const TRIALS_MAX = 5;

const held = Promise.withResolvers<void>();
const target = startTarget(async ({ path }) => {
  if (path === "/held") await held.promise;
  return new Response("ok");
});
let database: TestDatabase;
let nats: NatsServer;
let key = "";
const services: Record<Name, ServiceProcess> = {} as never;

beforeAll(async () => {
  [database, nats] = await Promise.all([createMigratedDatabase("metrics"), startNatsServer()]);
  const secretsKey = randomBytes(32);
  const log = createLog({ level: "error", name: "test" });
  const db = openDatabase(database.url, { connections: 1, log });
  const wish = { name: "metrics", plan: "scale", defaultRegion: "us-east" } as const;
  const seal = await openCellSeal({ db, log }, { secretsKey, secretsKeyFallbacks: [] });
  key = (await createProjectWithKeys(db, seal, wish)).keys.production;
  await db.close();
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    SHARDS_PER_REGION: String(SHARDS_PER_REGION),
  };
  await Promise.all(NAMES.map(async (name) => (services[name] = await startService(name, environment))));
});
afterAll(async () => {
  held.resolve();
  for (const service of Object.values(services)) await service.end("SIGKILL");
  await nats.stop();
  await target.stop();
  await database.drop();
});

describe("the metrics of three processes", () => {
  test("count jobs from request to webhook, and the refused requests", async () => {
    const answers = [
      await post("/v2/webhooks", { url: target.url, events: ["job.succeeded"] }),
      await post("/v2/jobs", { target_url: target.url }),
      await post("/v2/jobs/batch", { jobs: [{ target_url: target.url }, { target_url: target.url }] }),
      await post("/v2/jobs", {}),
      await post("/v2/nothing", {}),
      await fetch(`http://127.0.0.1:${services.gateway.port}/v2/jobs`),
    ];
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 400, 404, 401]);
    const delivery = await untilShown(
      "delivery",
      (page) =>
        page.value(DELIVERED) === JOBS &&
        page.value("jobwheel_attempts_in_flight") === 0 &&
        (page.value('jobwheel_postgres_connections{state="idle"}') ?? 0) > 0,
    );

    const gateway = await read("gateway");
    expect(gateway.value('jobwheel_jobs_created_total{origin="api"}')).toBe(JOBS);
    expect(gateway.value('jobwheel_requests_total{operation="createJob",status="2xx"}')).toBe(1);
    expect(gateway.value('jobwheel_requests_total{operation="createJob",status="4xx"}')).toBe(1);
    expect(gateway.value('jobwheel_requests_total{operation="none",status="4xx"}')).toBe(1);
    // A busy gateway may have answered with 503, and was asked again.
    const unserved = gateway.value('jobwheel_requests_total{operation="createJob",status="5xx"}') ?? 0;
    expect(gateway.value('jobwheel_request_seconds_count{operation="createJob"}')).toBe(2 + unserved);
    expect(gateway.value('jobwheel_request_seconds_sum{operation="createJob"}')).toBeGreaterThan(0);
    for (const code of ["invalid_request", "resource_not_found", "unauthorized"])
      expect(gateway.value(`jobwheel_refusals_total{code="${code}"}`)).toBe(1);

    expect(delivery.value(SETTLED)).toBe(JOBS);
    for (const kind of ["jobs", "webhooks"]) {
      const place = `{kind="${kind}",region="us-east"}`;
      expect(delivery.value(`jobwheel_lateness_seconds_count${place}`)).toBe(JOBS);
      // The bound is the longest time of a job here; a clock that was never asked would give an extreme value.
      expect(delivery.value(`jobwheel_lateness_seconds_sum${place}`)).toBeWithin(
        0.000_1,
        JOBS * LATE_SECONDS_MAX,
      );
      const rowsOf = (statement: string) =>
        delivery.value(`jobwheel_statement_rows_sum{statement="${statement}_${kind}"}`);
      // A second statement settles what the statement for ordinary jobs leaves, such as jobs with an endpoint.
      expect(rowsOf("settle")).toBeWithin(JOBS, kind === "jobs" ? 2 * JOBS + 1 : JOBS + 1);
      // A sweep just before a claim makes the same claim again, in vain.
      expect(rowsOf("claim")).toBeWithin(JOBS, 3 * JOBS + 1);
      for (const statement of [`claim_${kind}`, `settle_${kind}`])
        expect(delivery.value(`jobwheel_statement_seconds_sum{statement="${statement}"}`)).toBeGreaterThan(0);
    }
  });

  test("count each attempt that a worker or a gateway has asked for on the worker or on the node, once", async () => {
    // The node tells a worker too late of a claim that took seconds, and counts nothing that it claims while it hears no worker.
    let countedMore = 0;
    for (let trial = 1; countedMore !== JOBS && trial <= TRIALS_MAX; trial++) {
      const settledBefore = (await read("delivery")).value(SETTLED) ?? 0;
      const countedBefore = await countGranted();
      await post("/v2/jobs", { target_url: target.url });
      await post("/v2/jobs/batch", { jobs: [{ target_url: target.url }, { target_url: target.url }] });
      const delivery = await untilShown("delivery", (page) => page.value(SETTLED) === settledBefore + JOBS);
      const giveUpAt = performance.now() + COUNTED_MS_MAX;
      do {
        await Bun.sleep(LOOK_EVERY_MS);
        countedMore = (await countGranted()) - countedBefore;
      } while (countedMore < JOBS && performance.now() < giveUpAt);
      expect(countedBefore + countedMore).toBeLessThanOrEqual(delivery.value(SETTLED) ?? 0);
    }
    expect(countedMore).toBe(JOBS);
  });

  test("count the members of bulk operations", async () => {
    const later = { target_url: target.url, run_at: new Date(Date.now() + 3_600_000).toISOString() };
    const answers = [
      await post("/v2/jobs", later),
      await post("/v2/bulk", { action: "cancel", filter: { all: true } }),
    ];
    expect(answers.map(({ status }) => status)).toEqual([201, 201]);
    const canceled = 'jobwheel_bulk_members_total{action="cancel",outcome="done"}';
    const worker = await untilShown("worker", (page) => page.value(canceled) === 1);
    for (const statement of ["count_bulk", "judge_bulk"])
      expect(worker.value(`jobwheel_statement_seconds_sum{statement="${statement}"}`)).toBeGreaterThan(0);
  });

  test("count the shards, and the state of the cell", async () => {
    const all = SHARDS_PER_REGION * REGIONS.length;
    // A worker looks at the cell when it gets its shards, and every 15 s after that.
    const worker = await untilShown(
      "worker",
      (page) =>
        page.value("jobwheel_shards_owned") === all &&
        page.value('jobwheel_nodes{kind="worker",state="alive"}') === 1 &&
        page.value('jobwheel_permits_in_use{kind="jobs",environment="production"}') === 0 &&
        page.value("jobwheel_webhook_deliveries_due") === 0 &&
        page.value('jobwheel_insights_lateness_seconds{runs="own",quantile="1"}') !== undefined,
    );
    expect(worker.value('jobwheel_lease_changes_total{change="acquired"}')).toBe(all);
    expect(worker.value('jobwheel_lease_changes_total{change="lost"}')).toBe(0);
    for (const name of ["jobwheel_shard_ready_attempts", "jobwheel_shard_oldest_due_seconds"])
      expect(worker.samples.filter(([sample]) => sample.startsWith(`${name}{`)).length).toBe(all);
    expect(worker.value('jobwheel_statement_errors_total{kind="refused"}')).toBe(0);
  });

  test("are those of deploy/METRICS.md, and name no customer", async () => {
    const pages = await Promise.all(NAMES.map((name) => read(name)));
    const names = new Set(pages.flatMap(({ families }) => [...families.keys()]));
    const found = [...names].map((name) => {
      const shown = pages.map(({ families }) => families.get(name));
      const labels = new Set(shown.flatMap((family) => [...(family?.labels ?? [])]));
      const { type, help } = shown.find((family) => family !== undefined) ?? { type: "", help: "" };
      return { name, type, labels: [...labels].join(", "), meaning: help };
    });
    const rows = listMetrics();
    expect(rows.map(({ services: _, ...row }) => row)).toEqual(found.sort(byName));
    for (const { name, services: telling } of rows) {
      for (const [index, service] of NAMES.entries()) {
        const values = pages[index]?.families.get(name)?.values ?? [];
        // A metric of another service's work is absent or 0.
        const isTrue = telling.includes(service) ? values.length > 0 : values.every((value) => value === 0);
        expect([name, service, isTrue]).toEqual([name, service, true]);
      }
    }
    for (const { samples } of pages) {
      for (const [sample] of samples) expect(sample).not.toMatch(/_[0-9a-z]{26}|127\.0\.0\.1|svc_|http/);
    }
  });

  test("count an attempt whose node was killed", async () => {
    const rescued = 'jobwheel_attempts_rescued_total{kind="jobs"}';
    expect((await read("worker")).value(rescued)).toBe(0);
    await post("/v2/jobs", { target_url: target.url.replace("/hook", "/held") });
    await target.until((arrivals) => arrivals.some(({ path }) => path === "/held"));
    expect((await read("delivery")).value("jobwheel_attempts_in_flight")).toBe(1);
    await services.delivery.end("SIGKILL");
    await untilShown("worker", (page) => page.value(rescued) === 1);
  });
});

const SETTLED = 'jobwheel_attempts_settled_total{outcome="succeeded"}';
const DELIVERED = 'jobwheel_deliveries_settled_total{outcome="succeeded"}';

function post(path: string, body: unknown): Promise<Response> {
  return fetchServed(`http://127.0.0.1:${services.gateway.port}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
}

/** How many attempts of jobs the worker and the node have counted together. */
async function countGranted(): Promise<number> {
  let count = 0;
  for (const page of [await read("worker"), await read("delivery")]) {
    for (const start of ["on_time", "late", "held_back"])
      count +=
        page.value(`jobwheel_attempts_granted_total{kind="jobs",region="us-east",start="${start}"}`) ?? 0;
  }
  return count;
}

interface Page {
  families: Map<string, { type: string; help: string; labels: Set<string>; values: number[] }>;
  samples: [sample: string, value: number][];
  value(sample: string): number | undefined;
}

async function read(name: Name): Promise<Page> {
  const text = await (await fetch(`http://127.0.0.1:${services[name].opsPort}/metrics`)).text();
  const families: Page["families"] = new Map();
  for (const [, family = "", help = ""] of text.matchAll(/^# HELP (\S+) (.*)$/gm))
    families.set(family, { type: "", help, labels: new Set(), values: [] });
  for (const [, family = "", type = ""] of text.matchAll(/^# TYPE (\S+) (.*)$/gm)) {
    const known = families.get(family);
    if (known !== undefined) known.type = type;
  }
  const samples = [...text.matchAll(/^([^#\s].*) (\S+)$/gm)].map(
    ([, sample = "", value]): [string, number] => [sample, Number(value)],
  );
  for (const [sample, value] of samples) {
    const [full = "", labels = ""] = sample.split("{");
    const family = families.get(full) ?? families.get(full.replace(/_(bucket|sum|count)$/, ""));
    if (family === undefined) throw new Error(`${sample} has no name`);
    family.values.push(value);
    for (const [, label = ""] of labels.matchAll(/(\w+)="/g)) if (label !== "le") family.labels.add(label);
  }
  return { families, samples, value: (asked) => samples.find(([sample]) => sample === asked)?.[1] };
}

async function untilShown(name: Name, isShown: (page: Page) => boolean): Promise<Page> {
  const giveUpAt = performance.now() + SEEN_MS_MAX;
  for (;;) {
    const page = await read(name);
    if (isShown(page)) return page;
    if (performance.now() > giveUpAt) throw new Error(`not shown by the ${name} in time`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

const byName = (one: { name: string }, other: { name: string }) => (one.name < other.name ? -1 : 1);
