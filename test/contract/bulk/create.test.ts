import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import type { Client, NewBulk } from "../../../shared/client/index.ts";
import { OPEN_BULKS_MAX } from "../../../shared/domain/bulk.ts";
import { idTimeMs, idToUuid, REQUEST_PREFIX, retypeId } from "../../../shared/domain/ids.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { expectNoTrace } from "../attack/support.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
});
beforeEach(async () => {
  project = await gateway.addProject("scale");
  client = clientOf(gateway, project.production);
});
afterAll(() => gateway.stop());

const ALL: NewBulk = { action: "cancel", filter: { all: true } };
const DAY_MS = 86_400_000;
const iso = (at: number) => new Date(at).toISOString();

/** Sends bodies that the client's types would not let through. */
const send = (bulk: object) => client.bulk.create(bulk as NewBulk);

describe("POST /v2/bulk", () => {
  test("answers with the operation, which is being counted", async () => {
    const bulk = await client.bulk.create(ALL);
    expect(bulk).toEqual({
      id: bulk.id,
      action: "cancel",
      filter: { all: true },
      dry_run: false,
      status: "counting",
      per_second: 50,
      matched: null,
      done: 0,
      skipped: 0,
      failed: 0,
      sample: [],
      created_at: iso(idTimeMs(bulk.id)),
      started_at: null,
      ended_at: null,
    });
    expect(bulk.id).toMatch(/^blk_[0-9a-z]{26}$/);
  });

  test("has the id of its request, and tells the worker that owns the project's shard", async () => {
    const before = gateway.commands.length;
    const { result, answer } = await client.bulk.create(ALL).withAnswer();
    expect(result.id).toBe(retypeId(answer.requestId ?? "", "blk_"));
    expect(answer.requestId).toStartWith(REQUEST_PREFIX);
    await gateway.call("GET", "/v2/project", { key: project.production });
    expect(gateway.commands.slice(before)).toMatchObject([
      { region: "us-east", projectNo: project.no, owed: [] },
    ]);
  });

  test("takes every member of a filter, and answers them as they were given", async () => {
    const filter = {
      status: "failed",
      region: "eu-central",
      tag: "a:b/c+d",
      schedule_id: "sch_01arz3ndektsv4rrffq69g5fav",
      created_after: "2026-01-01T00:00:00+02:00",
      created_before: "2026-01-02T00:00:00.123456Z",
      target_host: "API.example.com",
      error_contains: '100% "of" it_',
      response_status: 503,
    } as const;
    const asked = { action: "retry", filter, dry_run: true, per_second: 1_000 } as const;
    const bulk = await client.bulk.create(asked);
    expect(bulk).toMatchObject(asked);
    expect(await client.bulk.get(bulk.id)).toEqual(bulk);
    const cancel = { action: "cancel", filter: { status: "running", target_host: "[::1]" } } as const;
    expect(await client.bulk.create(cancel)).toMatchObject(cancel);
    const unknown = { action: "cancel", filter: { schedule_id: "nothing" } } as const;
    expect(await client.bulk.create(unknown)).toMatchObject(unknown);
  });

  test.each<[string, string, object]>([
    ["no action", "action", { filter: { all: true } }],
    ["another action", "action", { action: "delete", filter: { all: true } }],
    ["no filter", "filter", { action: "cancel" }],
    ["an empty filter", "filter", { action: "cancel", filter: {} }],
    ["all that is false", "filter.all", { action: "cancel", filter: { all: false } }],
    ["all beside others", "filter.all", { action: "cancel", filter: { all: true, tag: "a" } }],
    ["an unknown member", "filter.flow_key", { action: "cancel", filter: { flow_key: "a" } }],
    ["a status that is over", "filter.status", { action: "cancel", filter: { status: "succeeded" } }],
    ["a status that did not fail", "filter.status", { action: "retry", filter: { status: "queued" } }],
    ["an unknown status", "filter.status", { action: "retry", filter: { status: "timed_out" } }],
    ["an error to cancel by", "filter.error_contains", { action: "cancel", filter: { error_contains: "a" } }],
    [
      "an answer to cancel by",
      "filter.response_status",
      { action: "cancel", filter: { response_status: 500 } },
    ],
    ["a range to cancel by", "filter.from", { action: "cancel", filter: { from: "2026-01-01T00:00:00Z" } }],
    ["an unknown region", "filter.region", { action: "cancel", filter: { region: "moon" } }],
    ["an empty tag", "filter.tag", { action: "cancel", filter: { tag: "" } }],
    ["a tag that no job can have", "filter.tag", { action: "cancel", filter: { tag: "a b" } }],
    [
      "a long id of a schedule",
      "filter.schedule_id",
      { action: "cancel", filter: { schedule_id: "s".repeat(101) } },
    ],
    [
      "an instant without an offset",
      "filter.created_after",
      { action: "cancel", filter: { created_after: "2026-01-01T00:00:00" } },
    ],
    ["a day", "filter.created_before", { action: "cancel", filter: { created_before: "2026-01-01" } }],
    [
      "a host with a port",
      "filter.target_host",
      { action: "cancel", filter: { target_host: "example.com:443" } },
    ],
    ["a URL", "filter.target_host", { action: "cancel", filter: { target_host: "https://example.com" } }],
    ["no host", "filter.target_host", { action: "cancel", filter: { target_host: "" } }],
    [
      "a long host",
      "filter.target_host",
      { action: "cancel", filter: { target_host: `${"a.".repeat(130)}com` } },
    ],
    ["an empty error", "filter.error_contains", { action: "retry", filter: { error_contains: "" } }],
    [
      "a long error",
      "filter.error_contains",
      { action: "retry", filter: { error_contains: "ä".repeat(201) } },
    ],
    ["an error with a NUL", "filter.error_contains", { action: "retry", filter: { error_contains: "a\0" } }],
    ["broken Unicode", "filter.error_contains", { action: "retry", filter: { error_contains: "\ud800" } }],
    ["an answer below 100", "filter.response_status", { action: "retry", filter: { response_status: 99 } }],
    ["an answer above 599", "filter.response_status", { action: "retry", filter: { response_status: 600 } }],
    [
      "an answer as a text",
      "filter.response_status",
      { action: "retry", filter: { response_status: "500" } },
    ],
    ["no pace", "per_second", { ...ALL, per_second: 0 }],
    ["too fast a pace", "per_second", { ...ALL, per_second: 1_001 }],
    ["a pace with a fraction", "per_second", { ...ALL, per_second: 1.5 }],
    ["a dry run that is no boolean", "dry_run", { ...ALL, dry_run: "true" }],
    ["a null", "filter.tag", { action: "cancel", filter: { tag: null } }],
    ["an unknown field", "dryRun", { ...ALL, dryRun: true }],
  ])("refuses %s, and leaves no trace", async (_, param, body) => {
    await expectNoTrace(gateway, project, () => refusalOf(send(body), "invalid_request", param));
  });

  test("takes an error of 200 characters, each of which is written as two", async () => {
    const filter = { error_contains: "😀".repeat(200) };
    expect(await client.bulk.create({ action: "retry", filter })).toMatchObject({ filter });
  });
});

describe("a backfill", () => {
  const schedule = async (cron = "0 * * * *") =>
    (await client.schedules.create({ name: crypto.randomUUID(), cron, target_url: TARGET_URL })).id;
  const range = (fromDays: number, toDays: number) => ({
    from: iso(Date.now() + fromDays * DAY_MS),
    to: iso(Date.now() + toDays * DAY_MS),
  });
  const backfill = (filter: object) => send({ action: "backfill", filter });

  test("takes a schedule and a range", async () => {
    const filter = { schedule_id: await schedule(), ...range(-2, -1) };
    expect(await backfill(filter)).toMatchObject({ action: "backfill", filter, status: "counting" });
  });

  test("is refused without one of them, and with anything else", async () => {
    const whole = { schedule_id: await schedule(), ...range(-2, -1) };
    for (const member of ["schedule_id", "from", "to"] as const) {
      const { [member]: _, ...rest } = whole;
      await refusalOf(backfill(rest), "invalid_request", `filter.${member}`);
    }
    await refusalOf(backfill({ ...whole, all: true }), "invalid_request", "filter.all");
    await refusalOf(backfill({ all: true }), "invalid_request", "filter.all");
    await refusalOf(backfill({ ...whole, status: "failed" }), "invalid_request", "filter.status");
    await refusalOf(backfill({}), "invalid_request", "filter.schedule_id");
  });

  test("is refused for a range that is empty, reversed, or not over yet", async () => {
    const id = await schedule();
    const [from] = [iso(Date.now() - DAY_MS)];
    await refusalOf(backfill({ schedule_id: id, from, to: from }), "invalid_request", "filter.from");
    await refusalOf(backfill({ schedule_id: id, ...range(-1, -2) }), "invalid_request", "filter.from");
    await refusalOf(backfill({ schedule_id: id, ...range(-1, 1) }), "invalid_request", "filter.to");
    await refusalOf(backfill({ schedule_id: id, from: "x", to: from }), "invalid_request", "filter.from");
  });

  test("is refused for a schedule that is not there, deleted, another project's or of the other environment", async () => {
    const others = [
      clientOf(gateway, project.development),
      clientOf(gateway, (await gateway.addProject()).production),
    ];
    const id = await schedule();
    for (const other of others) {
      const call = other.bulk.create({ action: "backfill", filter: { schedule_id: id, ...range(-2, -1) } });
      await refusalOf(call, "invalid_request", "filter.schedule_id");
    }
    await client.schedules.delete(id);
    for (const unknown of [id, "sch_01arz3ndektsv4rrffq69g5fav", "x", "job_01arz3ndektsv4rrffq69g5fav"]) {
      await refusalOf(
        backfill({ schedule_id: unknown, ...range(-2, -1) }),
        "invalid_request",
        "filter.schedule_id",
      );
    }
  });

  test("is refused beyond 100,000 instants of the ledger, those that it does not show any more left out", async () => {
    const id = await schedule("*/30 * * * * *");
    await gateway.query("UPDATE timetables SET since = since - interval '80 days' WHERE schedule_id = $1", [
      idToUuid(id),
    ]);
    const to = Math.floor(Date.now() / 60_000) * 60_000 - DAY_MS;
    const from = to - 100_000 * 30_000;
    const ask = (fromAt: number, toAt = to) =>
      backfill({ schedule_id: id, from: iso(fromAt), to: iso(toAt) });
    expect((await ask(from)).status).toBe("counting");
    await refusalOf(ask(from - 30_000), "invalid_request", "filter.from");
    await refusalOf(ask(from, to + 1), "invalid_request", "filter.from");
    // Instants before the schedule began are not counted.
    await gateway.query("UPDATE timetables SET since = since + interval '75 days' WHERE schedule_id = $1", [
      idToUuid(id),
    ]);
    expect((await ask(from - 365 * DAY_MS)).status).toBe("counting");
  });
});

describe("the number of unfinished operations", () => {
  test(`is ${OPEN_BULKS_MAX} in each environment, whoever asks at once`, async () => {
    const development = clientOf(gateway, project.development);
    const outcomes = await Promise.allSettled(
      Array.from({ length: OPEN_BULKS_MAX + 5 }, () => client.bulk.create({ ...ALL, dry_run: true })),
    );
    expect(outcomes.filter(({ status }) => status === "fulfilled").length).toBe(OPEN_BULKS_MAX);
    await refusalOf(client.bulk.create(ALL), "plan_limit_exceeded");
    expect((await development.bulk.create(ALL)).status).toBe("counting");
    const [last] = (await client.bulk.list({ limit: 1 })).data;
    await client.bulk.abort(last?.id ?? "");
    expect((await client.bulk.create(ALL)).status).toBe("counting");
    await refusalOf(client.bulk.create(ALL), "plan_limit_exceeded");
  });
});

describe("an Idempotency-Key", () => {
  test("makes one operation of many requests, and answers the first one's bytes", async () => {
    const options = { idempotencyKey: "the same" };
    const answers = await Promise.all(Array.from({ length: 5 }, () => client.bulk.create(ALL, options)));
    expect(new Set(answers.map((bulk) => JSON.stringify(bulk))).size).toBe(1);
    await client.bulk.abort(answers[0]?.id ?? "");
    expect(await client.bulk.create(ALL, options)).toEqual(answers[0] as (typeof answers)[0]);
    await refusalOf(
      client.bulk.create({ ...ALL, per_second: 1 }, options),
      "idempotency_conflict",
      "Idempotency-Key",
    );
    expect((await client.bulk.list()).data.length).toBe(1);
  });

  test("of an abort answers it again, although the operation is over", async () => {
    const { id } = await client.bulk.create(ALL);
    const options = { idempotencyKey: "stop" };
    const aborted = await client.bulk.abort(id, options);
    expect(await client.bulk.abort(id, options)).toEqual(aborted);
    await refusalOf(client.bulk.abort(id), "invalid_request");
  });
});

describe("a key of scope", () => {
  test.each([
    ["read", false],
    ["jobs", true],
    ["full", true],
  ] as const)("%s reads operations, and may it ask for one: %p", async (scope, mayWrite) => {
    const { key } = await gateway.addKey(project, { scope });
    const own = clientOf(gateway, key);
    const { id } = await client.bulk.create(ALL);
    expect((await own.bulk.get(id)).id).toBe(id);
    expect((await own.bulk.list()).data.length).toBe(1);
    if (mayWrite) {
      expect((await own.bulk.create({ ...ALL, dry_run: true })).status).toBe("counting");
      expect((await own.bulk.abort(id)).status).toBe("aborted");
    } else {
      await refusalOf(own.bulk.create({ ...ALL, dry_run: true }), "insufficient_scope");
      await refusalOf(own.bulk.abort(id), "insufficient_scope");
    }
  });
});
