import { addRunsToHost } from "../../shared/domain/insights/figures.ts";
import { bucketsOf } from "../../shared/domain/insights/levels.ts";
import { type Part, Parts, writeStep } from "../../shared/store/insights/parts.ts";
import { findOutset } from "../../shared/store/insights/progress.ts";
import type { TestConsole } from "./support.ts";

/**
 * A made-up project as people would have it, for screenshots: jobs that ran, some of which failed, schedules, endpoints, a bulk
 * operation, and a day of insights. The service itself does everything but the figures of the day and of the month. Afterwards
 * addresses of this machine are replaced by those of a company.
 */
export interface Showcase {
  /** The address of each page, by the name of its picture. */
  pages: Record<string, string>;
}

const HOSTS = ["api.acme.example", "billing.acme.example", "mail.acme.example"] as const;
const PRODUCTION = 1;

/** The target at `targetPort` answers 503 to paths with `mail`, and 200 to others. */
export async function buildShowcase(site: TestConsole, targetPort: number): Promise<Showcase> {
  const base = `http://127.0.0.1:${targetPort}`;
  await site.call("PATCH", "/v2/project", { name: "Acme Shop" });
  const webhook = await site.call<{ id: string }>("POST", "/v2/webhooks", {
    url: `${base}/events`,
    events: ["job.succeeded", "job.failed", "webhook.disabled"],
    description: "Billing",
  });
  const schedule = await site.call<{ id: string }>("POST", "/v2/schedules", {
    name: "nightly-invoices",
    cron: "30 2 * * MON-FRI",
    timezone: "Europe/Berlin",
    target_url: `${base}/invoices`,
    payload: { kind: "invoices", since: "yesterday" },
    overlap: "skip",
    tags: ["invoices"],
  });
  for (const [name, cron] of [
    ["hourly-report", "0 * * * *"],
    ["weekly-digest", "0 9 * * MON"],
    ["clean-up", "15 4 1 * *"],
  ] as const)
    await site.call("POST", "/v2/schedules", { name, cron, target_url: `${base}/reports` });
  const jobs = Array.from({ length: 44 }, (_, number) => jobOf(base, number));
  const { data } = await site.call<{ data: { id: string }[] }>("POST", "/v2/jobs/batch", { jobs });
  const failing = data[5]?.id ?? "";
  await until(async () => (await jobIn(site, failing)).attempts >= 3);
  await until(
    async () => (await site.call<{ data: unknown[] }>("GET", "/v2/jobs?status=running")).data.length === 0,
  );
  const bulk = await site.call<{ id: string }>("POST", "/v2/bulk", {
    action: "retry",
    filter: { tag: "newsletter" },
    dry_run: true,
  });
  await until(
    async () =>
      (await site.call<{ ended_at: string | null }>("GET", `/v2/bulk/${bulk.id}`)).ended_at !== null,
  );
  await site.call("POST", "/v2/keys", { name: "deployment", scope: "full" });
  await site.call("POST", "/v2/keys", { name: "dashboards", scope: "read", expires_in_hours: 720 });
  for (const [account, change] of [
    ["4711", { concurrency: 1, pinned: true }],
    ["4712", { concurrency: 4, rate: { count: 100, per_seconds: 60 } }],
    ["4715", { rate: { count: 5, per_seconds: 1 }, paused: true }],
  ] as const)
    await site.call("PATCH", `/v2/flows/account:${account}`, change);
  await site.call("POST", "/v2/hosts/mail.acme.example/park");
  await storeDay(site);
  await storeMonth(site);
  await writeAddresses(site, base);
  const view = (page: string) => `/console/production/${page}`;
  return {
    pages: {
      overview: view("overview?period=24h"),
      jobs: view("jobs"),
      job: view(`jobs/${failing}`),
      "new-job": view(`jobs/new?from=${failing}`),
      runs: view("runs"),
      schedules: view("schedules"),
      schedule: view(`schedules/${schedule.id}`),
      "edit-schedule": view(`schedules/${schedule.id}/edit`),
      bulk: view(`bulk/${bulk.id}`),
      "new-bulk": view("bulk/new"),
      webhook: view(`webhooks/${webhook.id}`),
      flows: view("flows"),
      flow: view("flows/account:4711"),
      hosts: view("hosts"),
      usage: view("usage"),
      keys: view("keys"),
    },
  };
}

function jobOf(base: string, number: number) {
  const isMail = number % 9 === 5;
  return {
    target_url: isMail ? `${base}/mail` : `${base}/${number % 3 === 0 ? "invoices" : "orders"}`,
    payload: {
      order: 88_213 + number,
      customer: { id: `c_${4_700 + number}`, locale: "de-DE" },
      lines: [
        { sku: "TEA-100", count: 2, price: 4.5 },
        { sku: "MUG-7", count: 1, price: 12 },
      ],
      gift: number % 4 === 0,
    },
    tags: [`customer:${4_700 + number}`, isMail ? "newsletter" : number % 3 === 0 ? "invoices" : "orders"],
    ...(number % 11 === 7 && { run_at: new Date(Date.now() + (number + 1) * 1_800_000).toISOString() }),
    retry_policy: { max_attempts: isMail ? 3 : 5, base_seconds: 1, cap_seconds: 1 },
  };
}

const jobIn = (site: TestConsole, id: string) => site.call<{ attempts: number }>("GET", `/v2/jobs/${id}`);

const WAIT_MS = 100;
const WAITS_MAX = 1_200;

async function until(holds: () => Promise<boolean>): Promise<void> {
  for (let count = 0; count < WAITS_MAX; count++) {
    if (await holds()) return;
    await Bun.sleep(WAIT_MS);
  }
  throw new Error("the showcase does not come to be");
}

/** Stores a day of figures, with more work by day than by night and a bad hour of the host for mails. */
async function storeDay({ cell: { db }, project }: TestConsole): Promise<void> {
  // The worker rolls up beside this function, and a step of the worker may have come first.
  await until(async () => {
    const outset = await findOutset(db);
    if (outset === null) throw new Error("there is no state of the roll-up");
    const { progress, now } = outset;
    const parts = new Parts();
    for (const at of bucketsOf("24h", now).slice(0, -1)) {
      const key = { projectNo: project.no, environment: PRODUCTION, region: 0, at };
      addBucket(parts.ofMinute(key, progress), at);
    }
    return writeStep(db, [...parts.all], progress);
  });
}

function addBucket(parts: readonly Part[], at: number): void {
  const hour = (at / 3_600_000) % 24;
  const count = Math.round(140 + 110 * Math.sin(((hour - 7) / 24) * 2 * Math.PI) + wobble(at, 30));
  const isBad = hour >= 3 && hour < 4.2;
  for (const { figures } of parts) figures.created += count;
  for (let n = 0; n < count; n++) {
    const host = HOSTS[n % HOSTS.length] ?? "";
    const fails = host.startsWith("mail") ? n % (isBad ? 2 : 20) === 0 : n % 97 === 0;
    const group = {
      host,
      count: 1,
      end: fails
        ? ({ status: "failed", responseStatus: 503, error: "no" } as const)
        : ({ status: "succeeded" } as const),
      late: [Math.round(8 + wobble(at + n, 8) + (n % 50 === 0 ? 40 + wobble(at + n, 60) : 0))],
      lateWaited: [],
      waitedFor: [],
      durations: [Math.round(90 + wobble(at * n, 80) + (n % 40 === 0 ? 900 : 0))],
    };
    for (const { figures, hosts } of parts) {
      figures.addRuns(group);
      addRunsToHost(hosts, group);
    }
  }
}

/** A number that only looks random, so that pictures taken again look the same. */
function wobble(seed: number, range: number): number {
  return (Math.abs(Math.sin(seed * 12.9898) * 43_758.5453) % 1) * range;
}

async function storeMonth({ cell, project }: TestConsole): Promise<void> {
  await cell.db.run("store_month", STORE_MONTH, [project.no]);
  await cell.db.run("count_month", COUNT_MONTH, [project.no]);
}

const STORE_MONTH = `
INSERT INTO usage_days (project_no, region, day, runs)
SELECT $1::int, region, day, (9000 + 5000 * sin(extract(day FROM day)) + 400 * extract(dow FROM day))::int / (1 + region * 2)
  FROM generate_series(date_trunc('month', now())::date, current_date - 1, interval '1 day') day, generate_series(0, 2) region
ON CONFLICT DO NOTHING`;
const COUNT_MONTH = `
UPDATE flows SET month_runs = (SELECT sum(runs) FROM usage_days WHERE project_no = $1 AND day >= month) WHERE project_no = $1`;

async function writeAddresses({ cell }: TestConsole, base: string): Promise<void> {
  const addresses: [string, string][] = [
    [`${base}/mail`, "https://mail.acme.example/send"],
    [`${base}/invoices`, "https://billing.acme.example/invoices"],
    [`${base}/events`, "https://billing.acme.example/jobwheel"],
    [base, "https://api.acme.example"],
  ];
  for (const [from, to] of addresses) {
    await cell.db.run("write_jobs", "UPDATE jobs SET target_url = replace(target_url, $1, $2)", [from, to]);
    await cell.db.run("write_schedules", "UPDATE schedules SET target_url = replace(target_url, $1, $2)", [
      from,
      to,
    ]);
    await cell.db.run("write_webhooks", "UPDATE webhooks SET url = replace(url, $1, $2)", [from, to]);
  }
}
