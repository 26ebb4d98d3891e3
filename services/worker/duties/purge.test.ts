import { expect, test } from "bun:test";
import { startStore } from "../../../shared/store/test-support.ts";
import { purgeExpired } from "./purge.ts";

test("the purge takes as many statements as there are expired keys, and leaves the others", async () => {
  const store = await startStore();
  try {
    await store.query(
      `INSERT INTO idempotency_keys (created_at, project_no, environment, digest, request_hash, job_ids)
       SELECT now() - CASE WHEN n <= 4500 THEN interval '25 h' ELSE interval '1 h' END, 1, 1, int4send(n), '', '{}'
         FROM generate_series(1, 4600) AS n`,
    );
    expect(await purgeExpired(store.db)).toBe(4_500);
    expect(await store.query("SELECT count(*)::int AS count FROM idempotency_keys")).toEqual([
      { count: 100 },
    ]);
  } finally {
    await store.stop();
  }
});

test("firings go once no plan shows them any more, and not before", async () => {
  const store = await startStore();
  try {
    await store.query(
      `INSERT INTO firings (schedule_id, fired_for)
       SELECT gen_random_uuid(), now() - CASE WHEN n <= 4500 THEN interval '367 days' ELSE interval '365 days' END
         FROM generate_series(1, 4600) AS n`,
    );
    expect(await purgeExpired(store.db)).toBe(4_500);
    expect(await store.query("SELECT count(*)::int AS count FROM firings")).toEqual([{ count: 100 }]);
  } finally {
    await store.stop();
  }
});
