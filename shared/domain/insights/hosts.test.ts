import { expect, test } from "bun:test";
import { INTERRUPTED_ERROR, judgeResponse, LOST_ERROR, UNKNOWN_ERROR, UNSENT_RUN_ERROR } from "../run.ts";
import { type FailedRun, type FailureKind, failureKindOf } from "./failure.ts";
import { addRunsToHost, type RunGroup } from "./figures.ts";
import { HOSTS_KEPT_MAX, Hosts } from "./hosts.ts";

const failed = (error: string | null, responseStatus: number | null = null): FailedRun => ({
  status: "failed",
  responseStatus,
  error,
});
const runs = (host: string, count: number, end: RunGroup["end"], durations: number[] = []): RunGroup => ({
  ...{ host, count, end, durations },
  ...{ late: [], lateWaited: [], waitedFor: [] },
});

test.each<[FailedRun, FailureKind]>([
  [{ status: "timed_out", responseStatus: null, error: "x" }, "timed_out"],
  [{ status: "timed_out", responseStatus: 200, error: "x" }, "timed_out"],
  [failed("no", 503), "status_503"],
  [failed("moved", 301), "status_301"],
  [failed("The target answered 200, but its body broke off.", 200), "broken_body"],
  [failed("The target refused the connection (ECONNREFUSED)."), "no_connection"],
  [failed("The name a.example could not be resolved (ENOTFOUND)."), "no_connection"],
  [failed("The connection failed (EPROTO)."), "no_connection"],
  [failed("No connection to the target could be made within 10 seconds."), "no_connection"],
  [failed("self-signed certificate (DEPTH_ZERO_SELF_SIGNED_CERT)"), "tls"],
  [failed("The name does not fit (ERR_TLS_CERT_ALTNAME_INVALID)"), "tls"],
  [failed("The target's answer is not HTTP: its status line is none."), "other"],
  [failed(LOST_ERROR), "other"],
  [failed(INTERRUPTED_ERROR), "other"],
  [failed(UNKNOWN_ERROR), "other"],
  [failed(UNSENT_RUN_ERROR), "other"],
  [failed(null), "other"],
])("the failure %j is of the kind %s", (run, kind) => {
  expect(failureKindOf(run)).toBe(kind);
});

test("a stalled answer and one that breaks off are told apart by what the domain makes of them", () => {
  const stalled = judgeResponse({ kind: "stalled" }, 0, 1_000);
  if (stalled.kind === "succeeded") throw new Error("it succeeded");
  expect(
    failureKindOf({ status: stalled.kind, responseStatus: stalled.responseStatus, error: stalled.error }),
  ).toBe("timed_out");
});

test("the hosts with most failures are shown, with all their runs, and those without failures are not", () => {
  const hosts = new Hosts();
  addRunsToHost(hosts, runs("a.example", 5, { status: "succeeded" }, [10, 10, 10, 10, 10]));
  addRunsToHost(hosts, runs("a.example", 2, failed("x", 500), [900, 900]));
  addRunsToHost(hosts, runs("a.example", 1, failed("x", 503), [5]));
  addRunsToHost(hosts, runs("b.example", 4, failed("x", 404), [1, 1, 1, 1]));
  addRunsToHost(hosts, runs("c.example", 9, { status: "succeeded" }));
  const again = new Hosts();
  again.addEncoded(hosts.encode());
  again.addEncoded(hosts.encode());
  for (const [shown, times] of [
    [hosts, 1],
    [again, 2],
  ] as const) {
    expect(shown.shown()).toEqual([
      {
        host: "b.example",
        runs: 4 * times,
        failed: 4 * times,
        durationP99Ms: 1,
        commonestError: "status_404",
      },
      {
        host: "a.example",
        runs: 8 * times,
        failed: 3 * times,
        durationP99Ms: expect.any(Number),
        commonestError: "status_500",
      },
    ]);
    expect(shown.shown()[1]?.durationP99Ms).toBeWithin(882, 901);
  }
});

test("of a million hosts those are kept that failed most, and none is told to have failed more often than it did", () => {
  const total = new Hosts();
  const failures = (n: number) => (n < 30 ? 50 - n : 1);
  for (let part = 0; part < 20; part++) {
    const hosts = new Hosts();
    for (let n = 0; n < 5_000; n++) {
      const name = n < 30 ? `often-${n}.example` : `once-${part}-${n}.example`;
      addRunsToHost(hosts, runs(name, failures(n), failed("x", 500)));
    }
    const text = hosts.encode() ?? "";
    expect(JSON.parse(text)).toHaveLength(HOSTS_KEPT_MAX);
    total.addEncoded(text);
  }
  expect(total.shown()).toEqual(
    Array.from({ length: 20 }, (_, n) => ({
      ...{ host: `often-${n}.example`, runs: 20 * failures(n), failed: 20 * failures(n) },
      ...{ durationP99Ms: null, commonestError: "status_500" as const },
    })),
  );
});
