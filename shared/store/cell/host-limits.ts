import type { HostLimit } from "../../domain/host-limit.ts";
import { idToUuid } from "../../domain/ids.ts";
import type { Database } from "../database/database.ts";
import type { OperatorCause } from "../resources/audit.ts";

/** All hosts with an operator's limit on the requests that a node has in flight. There are few. */
export async function listHostLimits(db: Database): Promise<(HostLimit & { limitedAt: number })[]> {
  const rows = await db.run<{ host: string; requests: number; limited_at: number }>(
    "list_host_limits",
    LIST,
    [],
  );
  return rows.map(({ host, requests, limited_at }) => ({ host, requests, limitedAt: limited_at }));
}

const LIST = `
SELECT host, requests, (extract(epoch FROM limited_at) * 1000)::float8 AS limited_at FROM host_limits ORDER BY host`;

/**
 * Limits the requests that each node has in flight to a host. Requests already in flight beyond the limit go on to
 * their end. A repeated call changes nothing.
 */
export async function setHostLimit(
  db: Database,
  { host, requests }: HostLimit,
  cause: OperatorCause,
): Promise<void> {
  await db.run("set_host_limit", SET, [host, requests, idToUuid(cause.requestId), cause.operator]);
}

const SET = `
WITH changed AS (
  INSERT INTO host_limits AS l (host, requests) VALUES ($1, $2)
      ON CONFLICT (host) DO UPDATE SET requests = excluded.requests, limited_at = now()
   WHERE l.requests <> excluded.requests
  RETURNING host, requests
)
INSERT INTO audit_entries (id, operator, action, subject, detail)
SELECT $3, $4, 'host.limit', host, json_build_object('requests', requests) FROM changed`;

/** Removes the limit of a host. False if the host had none. */
export async function clearHostLimit(db: Database, host: string, cause: OperatorCause): Promise<boolean> {
  const rows = await db.run("clear_host_limit", CLEAR, [host, idToUuid(cause.requestId), cause.operator]);
  return rows.length === 1;
}

const CLEAR = `
WITH changed AS (
  DELETE FROM host_limits WHERE host = $1 RETURNING host
), audited AS (
  INSERT INTO audit_entries (id, operator, action, subject) SELECT $2, $3, 'host.clear', host FROM changed
)
SELECT host FROM changed`;
