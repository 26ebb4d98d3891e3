import { afterAll, beforeAll, expect, test } from "bun:test";
import fc from "fast-check";
import { idToUuid, uuidToId } from "../../domain/ids.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { type Column, idColumn, instantColumn, int2Column, int4Column, textColumn } from "./columns.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const RUNS = { numRuns: 40 };
const idOf = (uuid: string) => uuidToId("job_", uuid);
const uuid = fc.uint8Array({ minLength: 16, maxLength: 16 }).map((bytes) => {
  const hex = bytes.toHex();
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
});
/** An instant between 50 years before Postgres' own epoch and long after any `run_at`. */
const instant = fc.integer({ min: Date.parse("1950-01-01"), max: Date.parse("2250-01-01") });

/** Sends columns of random values, nulls among them, and compares what Postgres has read with what `told` says. */
async function check<Value>(
  type: string,
  value: fc.Arbitrary<Value>,
  columnOf: (values: (Value | null)[]) => Column,
  shown: string,
  told: (value: Value) => unknown,
): Promise<void> {
  const values = fc.array(fc.option(value), { minLength: 1, maxLength: 40 });
  await fc.assert(
    fc.asyncProperty(values, async (sent) => {
      const text = `SELECT ${shown} AS value FROM unnest($1::${type}[], $2::int[]) WITH ORDINALITY AS c (v, place, n) ORDER BY n`;
      const rows = await store.query<{ value: unknown }>(text, [columnOf(sent), sent.map((_, n) => n)]);
      expect(rows.map((row) => row.value)).toEqual(sent.map((one) => (one === null ? null : told(one))));
    }),
    RUNS,
  );
}

test("numbers arrive as they were, nulls among them", async () => {
  await check("smallint", fc.integer({ min: -32_768, max: 32_767 }), int2Column, "v", (n) => n);
  await check("int", fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }), int4Column, "v", (n) => n);
});

test("the bits of an id arrive as its uuid", async () => {
  await check("uuid", uuid.map(idOf), idColumn, "v::text", idToUuid);
});

test("an instant arrives to the millisecond, before and after the epoch of Postgres", async () => {
  const told = (ms: number) => ms;
  await check("timestamptz", instant, instantColumn, "(extract(epoch FROM v) * 1000)::float8", told);
});

test("texts arrive as they were, quotes, line ends and characters of any length among them", async () => {
  // Texts of Postgres cannot hold U+0000, and JSON escapes it.
  const text = fc.string({ unit: "binary" }).map((one) => one.replaceAll("\u0000", "").toWellFormed());
  await check("text", text, textColumn, "v", (one) => one);
});
