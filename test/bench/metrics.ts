import { createAnswerNotes } from "../../services/gateway/request/answer-notes.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { printTable, summarize } from "./measure.ts";

/** What the metrics of a job cost from its request to its webhook, and what it costs to show them all. */

const JOBS = 1_000_000;
const ROUNDS = 5;
const PAGES = 50;
/** So many share a statement where much is to be done. */
const BATCH = 10;
const SHARDS_PER_REGION = 64;

const metrics = createMetrics();
const noteAnswer = createAnswerNotes(metrics);
const created = metrics.jobsCreated.of({ origin: "api" });
const [jobLateness, webhookLateness] = [metrics.lateness("jobs"), metrics.lateness("webhooks")];
const statements = (
  ["create_jobs", "claim_jobs", "settle_jobs", "claim_webhooks", "settle_webhooks"] as const
).map((name) => metrics.statement(name));
const answerNothing = () => Promise.resolve();
const shards = REGIONS.flatMap((region) =>
  Array.from({ length: SHARDS_PER_REGION }, (_, shard) => ({
    labels: { region, shard: String(shard) },
    value: shard,
  })),
);
metrics.shardReady.follow(() => shards);
metrics.shardOldestDueSeconds.follow(() => shards);

function countJob(job: number): void {
  const receivedAt = performance.now();
  noteAnswer("createJob", 201, performance.now() - receivedAt + (job % 20));
  jobLateness("us-east", job % 20);
  metrics.attemptsSettled.succeeded.inc();
  webhookLateness("us-east", job % 20);
  metrics.deliveriesSettled.succeeded.inc();
}

const perJob: number[] = [];
const perStatement: number[] = [];
const perPage: number[] = [];
for (let round = 0; round <= ROUNDS; round++) {
  let startedAt = performance.now();
  for (let job = 0; job < JOBS; job++) countJob(job);
  const jobNs = ((performance.now() - startedAt) * 1e6) / JOBS;

  startedAt = performance.now();
  for (let job = 0; job < JOBS / 100; job++) {
    created.inc(BATCH);
    for (const statement of statements) await statement(BATCH, answerNothing);
  }
  const statementNs = ((performance.now() - startedAt) * 1e6) / (JOBS / 100) / BATCH;

  startedAt = performance.now();
  for (let page = 0; page < PAGES; page++) await metrics.page();
  const pageMs = (performance.now() - startedAt) / PAGES;
  // The first round is for the compiler.
  if (round === 0) continue;
  perJob.push(jobNs);
  perStatement.push(statementNs);
  perPage.push(pageMs);
}

const lines = (await metrics.page()).text.split("\n").length;
printTable(
  ["", "cost"],
  [
    ["a job: request, lateness, outcome, and those of its webhook, ns", summarize(perJob)],
    [`its part of five statements for ${BATCH} each, ns`, summarize(perStatement)],
    [`a page of ${lines.toLocaleString("en-US")} lines, ms`, summarize(perPage)],
  ],
);
process.exit();
