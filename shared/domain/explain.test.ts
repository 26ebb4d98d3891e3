import { describe, expect, test } from "bun:test";
import { EXPLAINED_REASONS, explainWait, type OwedFacts, type Surroundings } from "./explain.ts";

const NOW = Date.parse("2026-11-23T12:00:00.000Z");
const CREATED = NOW - 60_000;
const MONTH_END = Date.parse("2026-12-01T00:00:00.000Z");

const around = (wish: Partial<Surroundings> = {}): Surroundings => ({
  isProjectHeld: false,
  isRegionHeld: false,
  region: "us-east",
  month: { runs: 0, max: null, endsAt: MONTH_END },
  hasWorker: true,
  hasDelivery: true,
  host: "example.com",
  hostRequestsMax: null,
  hostStanding: null,
  flow: null,
  concurrency: 10,
  permitsInUse: 3,
  ...wish,
});
const owed = (wish: Partial<OwedFacts> = {}): OwedFacts => ({
  attempt: 1,
  dueAt: NOW - 1_000,
  ranUntil: null,
  isByHand: false,
  parkedFor: null,
  hasPlace: false,
  ahead: 7,
  aheadAtFlow: 5,
  ...wish,
});
const explain = (its: OwedFacts, theirs: Surroundings) =>
  explainWait(its, theirs, { now: NOW, createdAt: CREATED });

describe("why an attempt waits", () => {
  const spent = { runs: 10_000, max: 10_000, endsAt: MONTH_END };

  test("is the first reason of the published order that applies", () => {
    // Each case has all later reasons as well, as far as they can be true together.
    const flow = { key: "a", concurrency: 1, rate: null, paused: false, inUse: 1, nextStartAt: null };
    const busy = { permitsInUse: 10, flow };
    const told = [
      explain(
        owed({ parkedFor: "full_host" }),
        around({ ...busy, isProjectHeld: true, month: spent, hasWorker: false }),
      ),
      explain(owed({ parkedFor: "full_host" }), around({ ...busy, month: spent, hasWorker: false })),
      explain(owed({ parkedFor: "full_host" }), around({ ...busy, hasWorker: false })),
      explain(owed({ parkedFor: "full_host", dueAt: NOW + 1 }), around(busy)),
      explain(owed({ parkedFor: "full_host", dueAt: NOW + 1, attempt: 2 }), around(busy)),
      explain(owed({ parkedFor: "full_host" }), around(busy)),
      explain(owed(), around(busy)),
      explain(owed({ hasPlace: true }), around(busy)),
      explain(owed(), around()),
    ];
    expect(told.map((waiting) => waiting.for)).toEqual([...EXPLAINED_REASONS]);
  });

  test("has the instants, numbers and sentence of its reason", () => {
    expect(explain(owed({ dueAt: NOW + 5_000 }), around())).toEqual({
      for: "due_time",
      since: CREATED,
      until: NOW + 5_000,
      ahead: null,
      message: "The job is due at 2026-11-23T12:00:05.000Z.",
    });
    expect(explain(owed({ dueAt: NOW + 5_000, attempt: 3, ranUntil: NOW - 9 }), around())).toEqual({
      for: "backoff",
      since: NOW - 9,
      until: NOW + 5_000,
      ahead: null,
      message: "Attempt 3 is due at 2026-11-23T12:00:05.000Z, after attempt 2 failed.",
    });
    expect(explain(owed(), around({ month: spent }))).toEqual({
      for: "quota",
      since: NOW - 1_000,
      until: MONTH_END,
      ahead: 7,
      limit: 10_000,
      inUse: 10_000,
      message:
        "All 10000 runs that the plan includes in a month were started. The attempt follows from 2026-12-01T00:00:00.000Z on, or after an upgrade.",
    });
    expect(explain(owed({ ahead: 1 }), around({ permitsInUse: 12 }))).toEqual({
      for: "concurrency",
      since: NOW - 1_000,
      until: null,
      ahead: 1,
      limit: 10,
      inUse: 12,
      message: "The project has 12 attempts in progress and may have 10; 1 attempt goes before this one.",
    });
    expect(explain(owed({ parkedFor: "full_host", ahead: null }), around({ hostRequestsMax: 2 }))).toEqual({
      for: "host",
      since: NOW - 1_000,
      until: null,
      ahead: null,
      host: "example.com",
      limit: 2,
      message:
        "As many requests as example.com is sent at a time are in flight there; more than 1000 attempts go before this one.",
    });
    expect(explain(owed({ ahead: 0 }), around())).toEqual({
      for: "turn",
      since: NOW - 1_000,
      until: null,
      ahead: 0,
      message: "The attempt is due and nothing is in its way; no attempt goes before this one.",
    });
    expect(explain(owed({ ahead: "unknown" }), around())).toMatchObject({
      for: "turn",
      ahead: null,
      message:
        "The attempt is due and nothing is in its way; an unknown number of those that are due at the same instant go before this one.",
    });
  });

  test("is the flow key for each of its limits, and for a turn that has not come", () => {
    const flow = { key: "a:1", concurrency: 2, rate: null, paused: false, inUse: 1, nextStartAt: null };
    const tell = (its: Partial<OwedFacts>, wish: object) =>
      explain(owed(its), around({ flow: { ...flow, ...wish } }));
    const common = { since: NOW - 1_000, until: null, ahead: 5, flowKey: "a:1" };
    expect(tell({}, { inUse: 3 })).toEqual({
      ...common,
      ...{ for: "flow" as const, limit: 2, inUse: 3 },
      message: "The flow key a:1 has 3 places taken and may have 2; 5 attempts go before this one.",
    });
    expect(tell({ hasPlace: true }, { inUse: 2, paused: true })).toEqual({
      ...common,
      ...{ for: "flow", limit: 0, inUse: 2 },
      message: "The flow key a:1 is paused; 5 attempts go before this one.",
    });
    const rate = { count: 50, per_seconds: 60 };
    expect(tell({ hasPlace: true }, { inUse: 2, rate, nextStartAt: NOW + 250 })).toEqual({
      ...common,
      ...{ for: "flow", until: NOW + 250, limit: 50 },
      message:
        "The flow key a:1 lets 50 attempts start in 60 s, and the next one at 2026-11-23T12:00:00.250Z; 5 attempts go before this one.",
    });
    expect(tell({ parkedFor: "flow" }, {}).message).toBe(
      "The attempt waits for its turn at the flow key a:1; 5 attempts go before this one.",
    );
    for (const free of [
      tell({}, {}),
      tell({ hasPlace: true }, { inUse: 2 }),
      tell({}, { rate, nextStartAt: NOW }),
    ])
      expect(free.for).toBe("turn");
  });

  test("is the host while it is down, whoever parked it, and for what is parked while it opens", () => {
    const tell = (parkedFor: OwedFacts["parkedFor"], standing: Surroundings["hostStanding"]) =>
      explain(owed({ parkedFor }), around({ hostStanding: standing }));
    const common = { since: NOW - 1_000, until: null, ahead: 7, host: "example.com" };
    const down = { state: "down", by: "breaker", nextProbeAt: NOW + 5_000 } as const;
    const message =
      "example.com is down, and what is sent there is parked until a probe reaches it; 7 attempts go before this one.";
    for (const parkedFor of ["host", "flow", null] as const)
      expect(tell(parkedFor, down)).toEqual({ ...common, for: "host", until: NOW + 5_000, message });
    expect(tell("host", { ...down, by: "hand", nextProbeAt: null }).message).toBe(
      "A request has parked what is sent to example.com. The attempt follows when the host is opened; 7 attempts go before this one.",
    );
    const opening = { state: "opening", by: "breaker", nextProbeAt: null } as const;
    expect(tell("host", opening)).toEqual({
      ...common,
      for: "host",
      message:
        "example.com is coming back, and what is parked for it starts at a rate that doubles; 7 attempts go before this one.",
    });
    expect(tell(null, opening).for).toBe("turn");
  });

  test("is the quota until the later of the month's end and the due time, and never for a run that was counted when it was asked for", () => {
    const nextYear = Date.parse("2027-03-01T00:00:00.000Z");
    expect(explain(owed({ dueAt: nextYear }), around({ month: spent }))).toMatchObject({
      for: "quota",
      until: nextYear,
    });
    expect(explain(owed({ isByHand: true, attempt: 2 }), around({ month: spent })).for).toBe("turn");
  });

  test("is a host that an operator has shut, before anything is parked there", () => {
    expect(explain(owed(), around({ hostRequestsMax: 0 }))).toMatchObject({
      for: "host",
      limit: 0,
      message: "The operator of the service lets no request through to example.com.",
    });
    expect(explain(owed(), around({ hostRequestsMax: 1 })).for).toBe("turn");
  });
});
