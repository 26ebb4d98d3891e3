import type { Database } from "./database/database.ts";
import type { TestStore } from "./test-support.ts";

/** The database with a memory of the last call of each named statement. */
export function recordStatements(db: Database) {
  const statements = new Map<string, { text: string; values: unknown[] }>();
  const run = <Row>(name: string, text: string, values: unknown[]) => {
    statements.set(name, { text, values });
    return db.run<Row>(name, text, values);
  };
  return { statements, db: { ...db, run } };
}

interface PlanNode {
  "Node Type": string;
  "Relation Name"?: string;
  "Index Name"?: string;
  "Shared Hit Blocks"?: number;
  "Shared Read Blocks"?: number;
  Plans?: PlanNode[];
}

/** One session of each store: a test may ask for hundreds of plans. */
const sessions = new WeakMap<TestStore, ReturnType<TestStore["session"]>>();

/** How Postgres runs a statement: by which indexes of these tables, and how many pages it reads. Its changes are rolled back. */
export async function explain(
  store: TestStore,
  { mode, text, values, tables }: { mode: string; text: string; values: unknown[]; tables: string[] },
) {
  const session = sessions.get(store) ?? store.session();
  sessions.set(store, session);
  const client = await session;
  /** The text that Postgres writes for an array in the binary form (database/columns.ts). */
  async function readBinary(array: Buffer): Promise<string> {
    const type = (await client.query("SELECT $1::oid::regtype::text AS name", [array.readUInt32BE(8)]))
      .rows[0]?.name;
    return (await client.query(`SELECT $1::${type}[]::text AS text`, [array])).rows[0]?.text;
  }
  try {
    await client.query("BEGIN");
    await client.query(`SET LOCAL plan_cache_mode = ${mode}`);
    await client.query(`PREPARE asked AS ${text}`);
    const texts: string[] = [];
    for (const value of values) texts.push(Buffer.isBuffer(value) ? await readBinary(value) : asText(value));
    const list = texts
      .map((text, index) => (values[index] === null ? "NULL" : client.escapeLiteral(text)))
      .join(", ");
    const { rows } = await client.query<{ "QUERY PLAN": { Plan: PlanNode }[] }>(
      `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked${values.length > 0 ? `(${list})` : ""}`,
    );
    const root = rows[0]?.["QUERY PLAN"][0]?.Plan;
    if (root === undefined) throw new Error("no plan");
    const nodes = flatten(root);
    const indexes = nodes.map((node) => node["Index Name"] ?? "");
    const scanned = nodes
      .filter((node) => node["Node Type"] === "Seq Scan")
      .map((node) => node["Relation Name"]);
    return {
      indexes: [
        ...new Set(indexes.filter((index) => tables.some((table) => index.startsWith(`${table}_`)))),
      ].sort(),
      /** Every table that was read as a whole; `wholeTables` are those of them among `tables`. */
      scanned,
      wholeTables: scanned.filter((table) => tables.includes(table ?? "")),
      pagesRead: (root["Shared Hit Blocks"] ?? 0) + (root["Shared Read Blocks"] ?? 0),
    };
  } finally {
    await client.query("ROLLBACK");
    await client.query("DEALLOCATE ALL");
  }
}

const flatten = (node: PlanNode): PlanNode[] => [node, ...(node.Plans ?? []).flatMap(flatten)];

function asText(value: unknown): string {
  if (!Array.isArray(value)) return String(value);
  return `{${value.map((member) => (member === null ? "NULL" : JSON.stringify(member))).join(",")}}`;
}
