import { describe, expect, test } from "bun:test";
import { zeroCounts } from "../bus/bus.ts";
import { createMetrics } from "./metrics.ts";

describe("the metrics", () => {
  test("tell what was counted, by label where there is one", async () => {
    const metrics = createMetrics();
    metrics.jobsCreated.inc(3);
    metrics.attemptsSettled.timed_out.inc();
    metrics.latenessSeconds.observe(0.0015);
    metrics.shardsOwned.set(7);
    const { text, contentType } = await metrics.page();
    expect(contentType).toStartWith("text/plain");
    expect(text).toContain("\njobwheel_jobs_created_total 3\n");
    expect(text).toContain('jobwheel_attempts_settled_total{outcome="timed_out"} 1\n');
    expect(text).toContain('jobwheel_attempts_settled_total{outcome="failed"} 0\n');
    expect(text).toContain('jobwheel_lateness_seconds_bucket{le="0.001"} 0\n');
    expect(text).toContain('jobwheel_lateness_seconds_bucket{le="0.002"} 1\n');
    expect(text).toContain("jobwheel_shards_owned 7\n");
  });

  test("read the bus's counts anew each time", async () => {
    const metrics = createMetrics();
    const counts = zeroCounts();
    counts.dropped = 1;
    metrics.showBus(() => counts);
    expect((await metrics.page()).text).toContain('jobwheel_bus_faults_total{kind="dropped"} 1\n');
    counts.dropped = 5;
    const { text } = await metrics.page();
    expect(text).toContain('jobwheel_bus_faults_total{kind="dropped"} 5\n');
    expect(text).toContain('jobwheel_bus_faults_total{kind="malformed"} 0\n');
  });

  test("of two in one process know nothing of each other", async () => {
    const [one, other] = [createMetrics(), createMetrics()];
    one.jobsCreated.inc();
    expect((await other.page()).text).toContain("jobwheel_jobs_created_total 0\n");
  });

  test("are ours, or the usual ones of a process as far as Bun gives them a meaning", async () => {
    const { text } = await createMetrics().page();
    const names = [...text.matchAll(/^# TYPE (\S+)/gm)].map((match) => match[1] ?? "");
    expect(names).toContain("process_cpu_seconds_total");
    expect(names).toContain("process_resident_memory_bytes");
    expect(names).toContain("nodejs_eventloop_lag_p99_seconds");
    expect(names.filter((name) => /active|heap_space|version/.test(name))).toEqual([]);
    expect(names.filter((name) => !/^(jobwheel|process|nodejs)_/.test(name))).toEqual([]);
  });
});
