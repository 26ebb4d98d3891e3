import { describe, expect, test } from "bun:test";
import { byLabel, createMetrics } from "./metrics.ts";

describe("the metrics", () => {
  test("show the counts, by label where there is one", async () => {
    const metrics = createMetrics();
    metrics.jobsCreated.of({ origin: "api" }).inc(3);
    metrics.attemptsSettled.timed_out.inc();
    metrics.lateness("jobs")("us-east", 1.5);
    const { text, contentType } = await metrics.page();
    expect(contentType).toStartWith("text/plain");
    expect(text).toContain('\njobwheel_jobs_created_total{origin="api"} 3\n');
    expect(text).toContain('jobwheel_attempts_settled_total{outcome="timed_out"} 1\n');
    expect(text).toContain('jobwheel_attempts_settled_total{outcome="failed"} 0\n');
    expect(text).toContain('jobwheel_lateness_seconds_bucket{le="0.001",kind="jobs",region="us-east"} 0\n');
    expect(text).toContain('jobwheel_lateness_seconds_bucket{le="0.002",kind="jobs",region="us-east"} 1\n');
    expect(text).not.toContain('lateness_seconds_count{kind="webhooks"');
  });

  test("count an attempt that seems early as on time", async () => {
    const metrics = createMetrics();
    metrics.lateness("webhooks")("eu-central", -3);
    const place = '{kind="webhooks",region="eu-central"}';
    const { text } = await metrics.page();
    expect(text).toContain(`jobwheel_lateness_seconds_sum${place} 0\n`);
    expect(text).toContain(`jobwheel_lateness_seconds_count${place} 1\n`);
  });

  test("read the bus's counts anew each time", async () => {
    const metrics = createMetrics();
    const counts = { dropped: 1, malformed: 0 };
    metrics.busFaults.follow(() => byLabel("kind", counts));
    expect((await metrics.page()).text).toContain('jobwheel_bus_faults_total{kind="dropped"} 1\n');
    counts.dropped = 5;
    const { text } = await metrics.page();
    expect(text).toContain('jobwheel_bus_faults_total{kind="dropped"} 5\n');
    expect(text).toContain('jobwheel_bus_faults_total{kind="malformed"} 0\n');
  });

  test("include the time and the rows of a failed statement, whose error is thrown on", async () => {
    const metrics = createMetrics();
    const run = metrics.statement("claim_jobs");
    expect(await run(7, async () => "answer")).toBe("answer");
    expect(run(2, () => Promise.reject(new Error("lost")))).rejects.toThrow("lost");
    await Promise.resolve();
    const { text } = await metrics.page();
    expect(text).toContain('jobwheel_statement_rows_sum{statement="claim_jobs"} 9\n');
    expect(text).toContain('jobwheel_statement_seconds_count{statement="claim_jobs"} 2\n');
    expect(text).toMatch(/jobwheel_statement_seconds_sum\{statement="claim_jobs"} \d/);
  });

  test("of two instances in one process are separate", async () => {
    const [one, other] = [createMetrics(), createMetrics()];
    one.webhooksDisabled.inc();
    expect((await other.page()).text).toContain("jobwheel_webhooks_disabled_total 0\n");
  });

  test("show that the event loop was held up", async () => {
    const begunAt = performance.now();
    const metrics = createMetrics();
    // The event loop must have been measured once before it is held up.
    const longestSeconds = async () =>
      Number(/^nodejs_eventloop_lag_max_seconds (\S+)$/m.exec((await metrics.page()).text)?.[1]);
    while (!((await longestSeconds()) > 0)) await Bun.sleep(10);
    const until = performance.now() + 200;
    while (performance.now() < until);
    let longest = 0;
    const giveUpAt = performance.now() + 5_000;
    while (longest < 0.15 && performance.now() < giveUpAt) {
      await Bun.sleep(10);
      longest = await longestSeconds();
    }
    expect(longest).toBeWithin(0.15, 2 + (performance.now() - begunAt) / 1_000);
  });

  test("are our own, and those default ones that mean something on Bun", async () => {
    const { text } = await createMetrics().page();
    const names = [...text.matchAll(/^# TYPE (\S+)/gm)].map((match) => match[1] ?? "");
    expect(names).toContain("process_cpu_seconds_total");
    expect(names).toContain("process_resident_memory_bytes");
    expect(names).toContain("nodejs_eventloop_lag_p99_seconds");
    expect(names.filter((name) => /active|heap_space|version|lag_mean/.test(name))).toEqual([]);
    expect(names.filter((name) => !/^(jobwheel|process|nodejs)_/.test(name))).toEqual([]);
    expect(new Set(names).size).toBe(names.length);
  });
});
