import type { Database } from "../database/database.ts";

/** All sealed values of the cell, place by place, for the commands that change the key. */

interface SealedColumn {
  table: string;
  column: string;
  /** The columns of the table's primary key, each with a value lower than all others. */
  key: readonly (readonly [name: string, type: string, lowest: unknown])[];
}

const ID = ["id", "uuid", "00000000-0000-0000-0000-000000000000"] as const;
const SCOPE = [["project_no", "int", -1] as const, ["environment", "smallint", -1] as const];

const PLACES = {
  signing_secrets: { table: "signing_secrets", column: "sealed", key: [ID] },
  // A rotation copies the present secret into the old one, so the present secrets come first.
  webhook_secrets: { table: "webhooks", column: "sealed_secret", key: [...SCOPE, ID] },
  old_webhook_secrets: { table: "webhooks", column: "sealed_old_secret", key: [...SCOPE, ID] },
  // The same column has kept answers without a secret, which are not sealed.
  kept_answers: {
    table: "idempotency_keys",
    column: "answer",
    key: [...SCOPE, ["digest", "bytea", Buffer.alloc(0)]],
  },
} satisfies Record<string, SealedColumn>;

export type SealedPlace = keyof typeof PLACES;
export const SEALED_PLACES = Object.keys(PLACES) as SealedPlace[];

/** The values of a row's primary key. */
export type RowKey = readonly unknown[];

/**
 * A page of a place's sealed values. Rows without a sealed value count towards the page's size, so the work of each
 * page is bounded. A page also ends at a number of bytes, since kept answers may repeat a payload.
 */
export async function listSealed(
  db: Database,
  place: SealedPlace,
  after: RowKey | null,
): Promise<{ rows: { key: RowKey; sealed: Buffer }[]; next: RowKey | null }> {
  const { table, column, key }: SealedColumn = PLACES[place];
  const names = key.map(([name]) => name);
  const order = names.join(", ");
  const found = await db.run<Record<string, unknown> & { sealed: Buffer | null; met: number }>(
    `list_${place}`,
    `SELECT ${order}, sealed, met
       FROM (SELECT ${order}, sealed, count(*) OVER ()::int AS met,
                    coalesce(sum(octet_length(sealed)) OVER before, 0) AS bytes_before
               FROM (SELECT ${order}, ${column} AS sealed FROM ${table}
                      WHERE (${order}) > (${key.map(([, type], index) => `$${index + 1}::${type}`).join(", ")})
                      ORDER BY ${order} LIMIT ${PAGE_ROWS}) page
             WINDOW before AS (ORDER BY ${order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) counted
      WHERE bytes_before < ${PAGE_BYTES}
      ORDER BY ${order}`,
    [...(after ?? key.map(([, , lowest]) => lowest))],
  );
  const keyOf = (row: Record<string, unknown>) => names.map((name) => row[name]);
  const last = found.at(-1);
  const isLast = last === undefined || (found.length === last.met && last.met < PAGE_ROWS);
  return {
    rows: found.flatMap((row) => (row.sealed === null ? [] : { key: keyOf(row), sealed: row.sealed })),
    next: isLast ? null : keyOf(last),
  };
}

const PAGE_ROWS = 500;
const PAGE_BYTES = 4_194_304;

export interface SealedChange {
  key: RowKey;
  was: Buffer;
  becomes: Buffer;
}

/**
 * Replaces the values that are still as they were found. Answers how many values it replaced. Locked rows are skipped;
 * the next pass takes them.
 */
export async function replaceSealed(
  db: Database,
  place: SealedPlace,
  changes: readonly SealedChange[],
): Promise<number> {
  const { table, column, key }: SealedColumn = PLACES[place];
  const names = key.map(([name]) => name);
  const columns = [...key.map(([, type]) => type), "bytea", "bytea"];
  const isSame = (one: string, other: string) =>
    names.map((name) => `${one}.${name} = ${other}.${name}`).join(" AND ");
  const statement = `
WITH locked AS MATERIALIZED (
  SELECT ${names.map((name) => `t.${name}`).join(", ")}, g.becomes
    FROM unnest(${columns.map((type, index) => `$${index + 1}::${type}[]`).join(", ")}) AS g (${names.join(", ")}, was, becomes)
    JOIN ${table} t ON ${isSame("t", "g")}
   WHERE t.${column} = g.was
     FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE ${table} t SET ${column} = l.becomes FROM locked l WHERE ${isSame("t", "l")} RETURNING 1`;
  const values = [
    ...names.map((_, index) => changes.map((change) => change.key[index])),
    changes.map(({ was }) => was),
    changes.map(({ becomes }) => becomes),
  ];
  return (await db.run(`replace_${place}`, statement, values)).length;
}
