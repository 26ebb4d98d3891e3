import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { getTableConfig, type PgTable } from "drizzle-orm/pg-core";
import { openTestDatabase } from "../../../test/support/database.ts";
import { createTestDatabase } from "../../../test/support/postgres.ts";
import { migrate } from "../cell/migrate.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { checkPrepared, SESSION_SETTINGS } from "./database.ts";
import * as bulk from "./schema/bulk.ts";
import * as cell from "./schema/cell.ts";
import * as deliveries from "./schema/deliveries.ts";
import * as gates from "./schema/gates.ts";
import * as history from "./schema/history.ts";
import * as jobs from "./schema/jobs.ts";
import * as resources from "./schema/resources.ts";
import * as shards from "./schema/shards.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const tables: PgTable[] = [bulk, cell, deliveries, gates, history, jobs, resources, shards].flatMap((file) =>
  Object.values(file),
);

test("the README of the store has a line for each table", async () => {
  const readme = await Bun.file(join(import.meta.dir, "../README.md")).text();
  const told = [...readme.matchAll(/^\| `(\w+)` +\|/gm)].map(([, name]) => name ?? "");
  expect(told.sort()).toEqual(tables.map((table) => getTableConfig(table).name).sort());
});

describe("the schema that drizzle knows", () => {
  test("names every table of the migrated database and no other", async () => {
    const rows = await store.query<{ name: string }>(
      `SELECT relname AS name FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY 1`,
    );
    expect(rows.map((row) => row.name)).toEqual(tables.map((table) => getTableConfig(table).name).sort());
  });

  test.each(tables.map((table) => [getTableConfig(table).name, table] as const))(
    "agrees with the columns of %s",
    async (name, table) => {
      const rows = await store.query(
        `SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS "notNull",
              a.atthasdef OR a.attidentity <> '' AS "hasDefault",
              substring(pg_get_expr(d.adbin, d.adrelid) FROM '^[0-9]+$|^true$|^false$') AS plain
         FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = $1::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1`,
        [name],
      );
      const known = getTableConfig(table).columns.map((column) => ({
        name: column.name,
        type: column.getSQLType(),
        notNull: column.notNull,
        hasDefault: column.hasDefault || column.generatedIdentity !== undefined,
        plain: /^(number|boolean)$/.test(typeof column.default) ? String(column.default) : null,
      }));
      expect(rows.sort(byName)).toEqual(known.sort(byName));
    },
  );

  test.each(tables.map((table) => [getTableConfig(table).name, table] as const))(
    "agrees with the keys and indexes of %s",
    async (name, table) => {
      const rows = await store.query<{ name: string; columns: string[]; unique: boolean; primary: boolean }>(
        `SELECT c.relname AS name, i.indisunique AS unique, i.indisprimary AS primary, i.indpred IS NOT NULL AS partial,
              array(SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, n)
                      JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum ORDER BY k.n) AS columns
         FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = $1::regclass ORDER BY 1`,
        [name],
      );
      const config = getTableConfig(table);
      const known = [
        ...config.columns
          .filter((column) => column.primary)
          .map((column) => indexOf(`${name}_pkey`, [column.name], { unique: true, primary: true })),
        ...config.primaryKeys.map((key) =>
          indexOf(`${name}_pkey`, key.columns.map(nameOf), { unique: true, primary: true }),
        ),
        ...config.columns
          .filter((column) => column.isUnique)
          .map((column) => indexOf(`${name}_${column.name}_key`, [column.name], { unique: true })),
        ...config.uniqueConstraints.map((key) =>
          indexOf(key.name ?? "", key.columns.map(nameOf), { unique: true }),
        ),
        ...config.indexes.map(({ config: index }) =>
          indexOf(index.name ?? "", index.columns.map(nameOf), {
            unique: index.unique,
            partial: index.where !== undefined,
          }),
        ),
      ];
      expect(rows.sort(byName)).toEqual(known.sort(byName));
    },
  );
});

describe("migrate", () => {
  test("may be called twice, and by ten processes at once", async () => {
    const fresh = await createTestDatabase("migrate");
    try {
      await Promise.all(Array.from({ length: 10 }, () => migrate(fresh.url)));
      await migrate(fresh.url);
      const db = openTestDatabase(fresh.url, 1, "silent");
      const applied = await db.run<{ count: number }>(
        "applied",
        "SELECT count(*)::int AS count FROM drizzle.__drizzle_migrations",
        [],
      );
      const journal = (await import("./migrations/meta/_journal.json")) as { entries: unknown[] };
      expect(applied).toEqual([{ count: journal.entries.length }]);
      await db.close();
    } finally {
      await fresh.drop();
    }
  });

  test("holds the locks of no migration while another is under way", async () => {
    const [row] = await store.query<{ transactions: number; migrations: number }>(
      "SELECT count(DISTINCT xmin::text)::int AS transactions, count(*)::int AS migrations FROM drizzle.__drizzle_migrations",
    );
    expect(row?.migrations).toBeGreaterThan(1);
    expect(row?.transactions).toBe(row?.migrations as number);
  });

  test("gives every session of the role its settings", async () => {
    const db = openTestDatabase(store.url, 1);
    const rows = await db.run<{ name: string; setting: string }>(
      "settings",
      "SELECT name, current_setting(name) AS setting FROM unnest($1::text[]) AS name",
      [Object.keys(SESSION_SETTINGS)],
    );
    await db.close();
    const wanted = { ...SESSION_SETTINGS, statement_timeout: "5s" };
    expect(Object.fromEntries(rows.map((row) => [row.name, row.setting]))).toEqual(wanted);
  });

  test("is asked for by a database that nobody has prepared", async () => {
    const fresh = await createTestDatabase("unprepared");
    const db = openTestDatabase(fresh.url, 1, "silent");
    try {
      await expect(checkPrepared(db)).rejects.toThrow("npm run migrate");
      await db.close();
      await migrate(fresh.url);
      const prepared = openTestDatabase(fresh.url, 1, "silent");
      await checkPrepared(prepared);
      await prepared.close();
    } finally {
      await fresh.drop();
    }
  });
});

const byName = (one: { name?: unknown }, other: { name?: unknown }) =>
  String(one.name).localeCompare(String(other.name));

/** The name of an index's column. The builder allows expressions there too; the schema has none. */
function nameOf(column: object): string {
  if ("name" in column && typeof column.name === "string") return column.name;
  throw new Error("an index over an expression");
}

function indexOf(
  name: string,
  columns: string[],
  {
    unique = false,
    primary = false,
    partial = false,
  }: Partial<Record<"unique" | "primary" | "partial", boolean>>,
) {
  return { name, unique, primary, partial, columns };
}
