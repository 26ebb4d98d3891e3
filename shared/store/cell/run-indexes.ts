import type pg from "pg";
import { RETENTION_LOCK } from "../retention/retention.ts";

/** The indexes of runs that a migration could not build: the end of their names, and their definition. */
const INDEXES = [
  { suffix: "of_schedule", definition: "(schedule_id, status, id) WHERE schedule_id IS NOT NULL" },
  { suffix: "settled", definition: "USING brin (settled_in) WITH (autosummarize = on)" },
] as const;

/**
 * Builds the indexes of runs for each table of runs that lacks one, while settlements go on. A partitioned table's index cannot
 * be built CONCURRENTLY. Later tables have the indexes from the beginning. Indexes that a dead process left are built anew.
 */
export async function buildRunIndexes(client: pg.Client): Promise<void> {
  // The lock keeps tables of runs from being made or dropped meanwhile.
  await client.query("SELECT pg_advisory_lock($1)", [RETENTION_LOCK]);
  try {
    for (const { suffix, definition } of INDEXES) {
      const { rows } = await client.query<{ leaf: string; whole: string }>(LACKING, [suffix]);
      for (const { leaf, whole } of rows) {
        const index = client.escapeIdentifier(`${leaf}_${suffix}`);
        await client.query(`DROP INDEX CONCURRENTLY IF EXISTS ${index}`);
        await client.query(
          `CREATE INDEX CONCURRENTLY ${index} ON ${client.escapeIdentifier(leaf)} ${definition}`,
        );
        await client.query(`ALTER INDEX ${client.escapeIdentifier(whole)} ATTACH PARTITION ${index}`);
      }
    }
  } finally {
    await client.query("SELECT pg_advisory_unlock($1)", [RETENTION_LOCK]);
  }
}

/** The tables that hold runs, each with the index that the table above it has. */
const LACKING = `
SELECT leaf.relname AS leaf, above.relname || '_' || $1 AS whole
  FROM pg_partition_tree('runs') t
  JOIN pg_class leaf ON leaf.oid = t.relid
  JOIN pg_class above ON above.oid = t.parentrelid
 WHERE t.isleaf
   AND NOT EXISTS (SELECT FROM pg_index i
                     JOIN pg_inherits h ON h.inhrelid = i.indexrelid
                    WHERE i.indrelid = t.relid AND h.inhparent = to_regclass(above.relname || '_' || $1))`;
