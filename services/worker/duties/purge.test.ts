import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes, randomUUID } from "node:crypto";
import {
  createIdSource,
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  firstIdAt,
  idToUuid,
  REQUEST_PREFIX,
  SCHEDULE_PREFIX,
  uuidToId,
} from "../../../shared/domain/ids.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import {
  addEndpoint,
  deliverySettlementOf,
  endJobs,
  type OwedDelivery,
  startDelivery,
} from "../../../shared/store/delivery-test-support.ts";
import { settleDeliveries } from "../../../shared/store/queue/delivery-settle.ts";
import { listTimetables } from "../../../shared/store/queue/firing-ledger.ts";
import {
  changeSchedule,
  createSchedule,
  deleteSchedule,
  type ScheduleRow,
} from "../../../shared/store/resources/schedules.ts";
import { startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { purgeExpired } from "./purge.ts";

const HOUR_MS = 3_600_000;
const ids = createIdSource(randomBytes);
const testKeyCause = () => ({ requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 1 });

let store: TestStore;
beforeEach(async () => {
  store = await startStore();
});
afterEach(() => store.stop());

test("the purge takes as many statements as there are expired keys, and leaves the others", async () => {
  await store.query(
    `INSERT INTO idempotency_keys (created_at, project_no, environment, digest, request_hash, job_ids)
       SELECT now() - CASE WHEN n <= 4500 THEN interval '25 h' ELSE interval '1 h' END, 1, 1, int4send(n), '', '{}'
         FROM generate_series(1, 4600) AS n`,
  );
  expect(await purgeExpired(store.db, Date.now())).toBe(4_500);
  expect(await store.query("SELECT count(*)::int AS count FROM idempotency_keys")).toEqual([{ count: 100 }]);
});

test("a purge that fails keeps no other from its turn, and its error is told", async () => {
  await store.query(
    `INSERT INTO firings (schedule_id, fired_for)
       SELECT gen_random_uuid(), now() - interval '367 days' FROM generate_series(1, 3)`,
  );
  const db: typeof store.db = {
    ...store.db,
    async run<Row>(name: string, text: string, values: unknown[]) {
      if (name === "purge_keys") throw new Error("its time is over");
      return store.db.run<Row>(name, text, values);
    },
  };
  await expect(purgeExpired(db, Date.now())).rejects.toThrow("its time is over");
  expect(await store.query("SELECT count(*)::int AS count FROM firings")).toEqual([{ count: 0 }]);
});

test("firings are purged once no plan shows them any more, and not before", async () => {
  await store.query(
    `INSERT INTO firings (schedule_id, fired_for)
       SELECT gen_random_uuid(), now() - CASE WHEN n <= 4500 THEN interval '367 days' ELSE interval '365 days' END
         FROM generate_series(1, 4600) AS n`,
  );
  expect(await purgeExpired(store.db, Date.now())).toBe(4_500);
  expect(await store.query("SELECT count(*)::int AS count FROM firings")).toEqual([{ count: 100 }]);
});

describe("the timetables of a schedule", () => {
  const projectNo = () => store.addProject();
  /** The timezones of the timetables, the oldest timetable first. */
  const listed = async (id: string) => {
    const untilAt = Date.now() + HOUR_MS;
    const timetables = await listTimetables(store.db, id, { untilAt, untilNo: null, limit: 1_000 });
    return timetables.map(({ timezone }) => timezone).reverse();
  };

  async function addSchedule(project: ProjectNo): Promise<string> {
    const id = ids.next(SCHEDULE_PREFIX, Date.now());
    const created = await createSchedule(
      store.db,
      {
        id,
        projectNo: project,
        environment: "production",
        name: "every hour",
        cron: "0 * * * *",
        timezone: "UTC",
        targetUrl: "https://target.example/hook",
        payload: "{}",
        retryPolicy: { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 },
        overlap: null,
        spreadSeconds: null,
        paused: false,
        tags: null,
        flow: null,
        nextRunAt: Date.now() + HOUR_MS,
        shard: 0,
        activeMax: 10,
      },
      testKeyCause(),
      null,
    );
    expect(created).toBe("created");
    return id;
  }

  /** Changes a schedule as a client does by a PATCH. */
  async function change(project: ProjectNo, id: string, timezone: string): Promise<void> {
    const scope = { projectNo: project, environment: "production" } as const;
    const nextRunAt = Date.now() + HOUR_MS;
    const decide = (schedule: ScheduleRow) => ({ ...schedule, timezone, nextRunAt });
    expect(await changeSchedule(store.db, scope, id, decide, 10, testKeyCause())).toMatchObject({ timezone });
  }

  test("are purged once others have replaced them for longer than firings are shown, while the schedule lives on", async () => {
    const project = await projectNo();
    const [changed, unchanged] = [await addSchedule(project), await addSchedule(await projectNo())];
    for (const zone of ["Europe/Paris", "Europe/Rome", "Europe/Vienna"]) await change(project, changed, zone);
    expect(await listed(changed)).toEqual(["UTC", "Europe/Paris", "Europe/Rome", "Europe/Vienna"]);
    // UTC was replaced 367 days ago, Paris 366.5 and Rome 364, so Rome was in force 366 days ago.
    const ages = [
      ["UTC", 400, 367],
      ["Europe/Paris", 367, 366.5],
      ["Europe/Rome", 366.5, 364],
      ["Europe/Vienna", 364, null],
    ];
    for (const age of ages) {
      await store.query(
        `UPDATE timetables
            SET since = since - $2::float8 * interval '1 day', replaced_at = replaced_at - $3::float8 * interval '1 day'
          WHERE schedule_id = '${idToUuid(changed)}' AND timezone = $1`,
        age,
      );
    }
    expect(await purgeExpired(store.db, Date.now())).toBe(2);
    expect(await listed(changed)).toEqual(["Europe/Rome", "Europe/Vienna"]);
    expect(await listed(unchanged)).toEqual(["UTC"]);
  });

  test("are all purged after their schedule's deletion, however many there are", async () => {
    const project = await projectNo();
    const [deleted, other] = [await addSchedule(project), await addSchedule(await projectNo())];
    await store.query(
      `INSERT INTO timetables (schedule_id, paused, cron, timezone, replaced_at)
         SELECT $1, false, '0 * * * *', 'UTC', now() FROM generate_series(1, 4500)`,
      [idToUuid(deleted)],
    );
    const scope = { projectNo: project, environment: "production" } as const;
    expect(await deleteSchedule(store.db, scope, deleted, testKeyCause())).toBe(true);
    const counts = () =>
      store.query(
        `SELECT (SELECT count(*)::int FROM timetables WHERE schedule_id = $1) AS deleted,
                (SELECT count(*)::int FROM timetables WHERE schedule_id = $2) AS other,
                (SELECT count(*)::int FROM deleted_schedules) AS noted`,
        [idToUuid(deleted), idToUuid(other)],
      );
    // The deletion's answer does not wait for the timetables, and the schedule's name is free.
    expect(await counts()).toEqual([{ deleted: 4_501, other: 1, noted: 1 }]);
    await addSchedule(project);
    await purgeExpired(store.db, Date.now());
    await purgeExpired(store.db, Date.now());
    expect(await counts()).toEqual([{ deleted: 0, other: 1, noted: 0 }]);
  });
});

test("dead nodes are purged a month after their last beat, unless an older node stays", async () => {
  await store.query(
    `INSERT INTO nodes (kind, name, regions, process, dead, seen_at)
       SELECT 'worker', 'worker-' || n, '{}', '', n <> 4501, now() - CASE n WHEN 4503 THEN interval '30 days' ELSE interval '32 days' END
         FROM generate_series(1, 4503) AS n`,
  );
  const names = async () => (await store.query("SELECT name FROM nodes ORDER BY id")).map(({ name }) => name);
  expect(await purgeExpired(store.db, Date.now())).toBe(4_500);
  expect(await names()).toEqual(["worker-4501", "worker-4502", "worker-4503"]);
  await store.query("UPDATE nodes SET dead = true");
  expect(await purgeExpired(store.db, Date.now())).toBe(2);
  expect(await names()).toEqual(["worker-4503"]);
});

test("hosts that are well are forgotten after a day, and a month after the begin of a row of failures; all others stay", async () => {
  await store.query(
    `INSERT INTO target_hosts (project_no, environment, host, since, state, by, failures, failing_since)
     SELECT 7, 1, 'h' || n, now() - CASE n WHEN 4501 THEN interval '24 hours' ELSE interval '26 hours' END, CASE n WHEN 4502 THEN 0 END,
            CASE n WHEN 4502 THEN 1 END, CASE WHEN n % 2 = 0 OR n = 4503 THEN 3 ELSE 0 END,
            CASE WHEN n % 2 = 0 THEN now() - interval '32 days' WHEN n = 4503 THEN now() - interval '30 days' END
       FROM generate_series(1, 4503) AS n`,
  );
  // One that has failed since was looked at, and stays.
  expect(await purgeExpired(store.db, Date.now())).toBe(4_501);
  const left = await store.query("SELECT host FROM target_hosts WHERE project_no = 7 ORDER BY host");
  expect(left.map(({ host }) => host)).toEqual(["h4501", "h4502", "h4503"]);
  expect(await purgeExpired(store.db, Date.now())).toBe(0);
});

describe("what was sent to endpoints", () => {
  const rows = (table: string) => store.query(`SELECT count(*)::int AS count FROM ${table}`);

  test("is purged a day after the 30 days for which it is shown, however much there is", async () => {
    const age = "CASE WHEN n <= 4500 THEN interval '31 days 1 min' ELSE interval '30 days 23 h' END";
    await store.query(
      `INSERT INTO ended_deliveries (ended_at, project_no, environment, region, status, attempts, id, webhook_id, event_id)
       SELECT now() - ${age}, 1, 1, 0, n % 3, 1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid()
         FROM generate_series(1, 4600) AS n`,
    );
    await store.query(
      `INSERT INTO delivery_attempts (started_at, duration_ms, attempt, status, delivery_id, webhook_id)
       SELECT now() - ${age}, 1, 1, 1 + n % 2,
              (lpad(to_hex(floor(extract(epoch FROM now() - ${age}) * 1000)::bigint), 12, '0') || left(md5(n::text), 20))::uuid,
              gen_random_uuid()
         FROM generate_series(1, 4600) AS n`,
    );
    await addEvents("gen_random_uuid()", age, 4_600);
    expect(await purgeExpired(store.db, Date.now())).toBe(13_500);
    for (const table of ["ended_deliveries", "delivery_attempts", "events"])
      expect(await rows(table)).toEqual([{ count: 100 }]);
    expect(await purgeExpired(store.db, Date.now())).toBe(0);
  });

  test("keeps its event while the delivery of one is owed, however old it is", async () => {
    const nodeId = await store.addNode();
    const project = await store.addProject();
    await addEndpoint(store, project);
    const [held, over] = (await endJobs(store, nodeId, project, { count: 2 })) as [
      OwedDelivery,
      OwedDelivery,
    ];
    await settleDeliveries(store.db, [deliverySettlementOf(await startDelivery(store, nodeId, over))], 0);
    // Makes the jobs have ended 40 days ago. The delivery's id begins with the time as well.
    await store.query(
      "UPDATE events SET occurred_at = occurred_at - interval '40 days' WHERE project_no = $1",
      [project],
    );
    await store.query(
      `UPDATE open_deliveries o
          SET id = (lpad(to_hex(floor(extract(epoch FROM e.occurred_at) * 1000)::bigint), 12, '0')
                    || right(replace(o.id::text, '-', ''), 20))::uuid
         FROM events e WHERE e.id = o.event_id AND o.project_no = $1`,
      [project],
    );
    expect(await purgeExpired(store.db, Date.now())).toBe(0);
    const [kept] = await store.query<{ event_id: string; id: string }>(
      "SELECT o.event_id, o.id FROM open_deliveries o JOIN events e ON e.id = o.event_id WHERE o.project_no = $1",
      [project],
    );
    const id = uuidToId(DELIVERY_PREFIX, kept?.id ?? "");
    const started = await startDelivery(store, nodeId, { ...held, id });
    expect(started.granted.event.id).toBe(uuidToId(EVENT_PREFIX, kept?.event_id ?? ""));
    expect(await purgeExpired(store.db, Date.now())).toBe(0);
    await settleDeliveries(store.db, [deliverySettlementOf(started)], 0);
    // The attempt goes with the age of its delivery.
    expect(await purgeExpired(store.db, Date.now())).toBe(3);
  });

  test("keeps the event of a sample whose delivery waits, although the two have times of their own", async () => {
    const AGE_MS = 31 * 86_400_000 + 100;
    const project = await store.addProject();
    const event = randomUUID();
    await addEvents(`'${event}'`, `interval '${AGE_MS} ms'`, 1, project);
    const endpoint = await addEndpoint(store, project);
    const sample = idToUuid(firstIdAt(DELIVERY_PREFIX, Date.now() - AGE_MS + 300));
    await store.query(
      `INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, by_hand, due_at)
       VALUES ($1, 1, 0, $2, $3, $4, 0, true, now())`,
      [project, sample, idToUuid(endpoint), event],
    );
    expect(await purgeExpired(store.db, Date.now())).toBe(0);
    await store.query("DELETE FROM open_deliveries WHERE project_no = $1", [project]);
    expect(await purgeExpired(store.db, Date.now())).toBe(1);
  });

  const addEvents = (id: string, age: string, count: number, project = 1) =>
    store.query(
      `INSERT INTO events (occurred_at, started_at, project_no, duration_ms, environment, region, type, attempt, run_status,
                           id, api_version)
       SELECT now() - ${age}, now(), ${project}, 1, 1, 0, 0, 1, 1, ${id}, '2026-11-01' FROM generate_series(1, ${count}) AS n`,
    );
});

describe("bulk operations", () => {
  const add = async (status: number, endedDays: number | null, leaves: boolean, members: number) => {
    const [row] = await store.query<{ id: string }>(
      `INSERT INTO bulk_operations (project_no, environment, id, shard, action, status, per_second, dry_run, filter, ended_at, leaves_members)
       VALUES (1, 1, gen_random_uuid(), 0, 0, $1, 50, false, '{"all":true}', now() - $2::float8 * interval '1 day', $3) RETURNING id`,
      [status, endedDays, leaves],
    );
    await store.query(
      "INSERT INTO bulk_members (bulk_id, position, job_id, region) SELECT $1, n, gen_random_uuid(), 0 FROM generate_series(1, $2::int) n",
      [row?.id, members],
    );
    return row?.id ?? "";
  };
  const left = async () => ({
    operations: (await store.query<{ id: string }>("SELECT id FROM bulk_operations"))
      .map(({ id }) => id)
      .sort(),
    members: await store.query<{ bulk_id: string; count: number }>(
      "SELECT bulk_id, count(*)::int AS count FROM bulk_members GROUP BY 1",
    ),
  });

  test("are purged 90 days after their end, and the members of aborted ones as soon as may be", async () => {
    const kept = [await add(4, 89.9, false, 0), await add(0, null, false, 3)];
    await add(4, 90.1, false, 0);
    const aborted = await add(5, 0, true, 4_500);
    await add(5, 90.1, true, 7);
    const running = kept[1] ?? "";
    // An operation that leaves members is purged once these are.
    await purgeExpired(store.db, Date.now());
    await purgeExpired(store.db, Date.now());
    await purgeExpired(store.db, Date.now());
    expect(await left()).toEqual({
      operations: [...kept, aborted].sort(),
      members: [{ bulk_id: running, count: 3 }],
    });
    const leaving = await store.query("SELECT FROM bulk_operations WHERE leaves_members");
    expect(leaving).toEqual([]);
  });
});
