import {
  idTimeMs,
  idToUuid,
  JOB_PREFIX,
  KEY_PREFIX,
  NEWEST_UUID,
  PROJECT_PREFIX,
  REQUEST_PREFIX,
  uuidToId,
} from "../../domain/ids.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode, environmentOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { auditEntries } from "../database/schema/history.ts";

/** The API request, with its key, that makes a change. */
export interface KeyCause {
  requestId: string;
  keyNo: number;
}

/** The operator's command that makes a change. */
export interface OperatorCause {
  requestId: string;
  operator: string;
}

export type AuditAction =
  | "job.create"
  | "job.cancel"
  | "run.retry"
  | "bulk.create"
  | "bulk.abort"
  | "flow.update"
  | "host.park"
  | "host.open"
  | "schedule.create"
  | "schedule.update"
  | "schedule.delete"
  | "webhook.create"
  | "webhook.update"
  | "webhook.delete"
  | "webhook.rotate"
  | "webhook.test"
  | "delivery.retry"
  | "project.create"
  | "project.change"
  | "project.update"
  | "key.create"
  | "key.revoke"
  | "key.rotate"
  | "secret.rotate"
  | "secrets_key.reseal"
  | "secrets_key.retire"
  | "secrets_key.lose"
  | "project.hold"
  | "project.resume"
  | "region.hold"
  | "region.resume"
  | "host.limit"
  | "host.clear"
  | "node.declare_dead";

export interface Change {
  action: AuditAction;
  projectNo: ProjectNo | null;
  environment: Environment | null;
  /** An id, a node's name, a host, or a key's fingerprint. */
  subject: string;
  /** Never a key, a secret or a payload. */
  detail?: object;
}

/** Records a change within the transaction that makes it. */
export async function recordChange(
  tx: Pick<Database["drizzle"], "insert">,
  cause: KeyCause | OperatorCause,
  { action, projectNo, environment, subject, detail }: Change,
): Promise<void> {
  await tx.insert(auditEntries).values({
    id: idToUuid(cause.requestId),
    projectNo,
    environment: environment === null ? null : environmentCode(environment),
    ...("operator" in cause ? { operator: cause.operator } : { keyNo: cause.keyNo }),
    action,
    subject,
    detail: detail ?? null,
  });
}

/** The first six parameters of a statement that changes one thing of an environment: its scope, its id, and the cause. */
export const changeOf = (
  { projectNo, environment }: { projectNo: ProjectNo; environment: Environment },
  id: string,
  { requestId, keyNo }: KeyCause,
) => [projectNo, environmentCode(environment), idToUuid(id), idToUuid(requestId), keyNo, id];

/** Records a change within the statement that makes it (changeOf), if `from` has a row. `detail` is JSON. */
export const auditFrom = (action: AuditAction, from: string, detail = "NULL"): string => `audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject, detail)
  SELECT $4, $1, $2, $5, '${action}', $6, ${detail}::json FROM ${from}
)`;

/** Instants are milliseconds since 1970. */
export interface AuditEntry {
  /** The entry's place among all entries, newest first. Unlike a request id, it is unique. */
  id: string;
  at: number;
  requestId: string;
  by: { kind: "key"; id: string; name: string | null } | { kind: "operator"; name: string };
  action: AuditAction;
  projectId: string | null;
  environment: Environment | null;
  subject: string;
  detail: unknown;
}

export const AUDIT_PREFIX = "aud_";

/**
 * A page of changes, newest first: of one project, or of all projects and the nodes; by operators alone, or by keys as
 * well.
 */
export async function listAudit(
  db: Database,
  query: { projectNo: ProjectNo | null; isOfOperators?: boolean; beforeId: string | null; limit: number },
): Promise<AuditEntry[]> {
  const [name, statement] = query.isOfOperators
    ? ["list_operators_audit", LIST_OF_OPERATORS]
    : ["list_audit", LIST];
  const rows = await db.run<Row>(name, statement, [
    query.projectNo,
    query.beforeId === null ? NEWEST_UUID : idToUuid(query.beforeId),
    query.limit,
  ]);
  return rows.map((row) => ({
    id: uuidToId(AUDIT_PREFIX, row.id),
    at: row.at ?? idTimeMs(uuidToId(JOB_PREFIX, row.id)),
    requestId: uuidToId(REQUEST_PREFIX, row.request_id),
    by:
      row.operator === null
        ? { kind: "key", id: uuidToId(KEY_PREFIX, row.key_id), name: row.key_name }
        : { kind: "operator", name: row.operator },
    action: row.action,
    projectId: row.project_id === null ? null : uuidToId(PROJECT_PREFIX, row.project_id),
    environment: row.environment === null ? null : environmentOf(row.environment),
    subject: row.subject ?? uuidToId(JOB_PREFIX, row.id),
    detail: row.detail,
  }));
}

const entriesWhere = (condition: string) => `
  (SELECT id, id AS request_id, (extract(epoch FROM recorded_at) * 1000)::float8 AS at, project_no, environment, key_no,
          operator, action, subject, detail
     FROM audit_entries
    WHERE ($1::int IS NULL OR project_no = $1) AND id < $2 AND ${condition}
    ORDER BY id DESC LIMIT $3)`;

// Jobs are found through their lanes, so this list needs no index of its own.
const CREATED_JOBS = `
  (SELECT job.id, coalesce(job.request_id, job.id), NULL, l.project_no, l.environment, job.key_no, NULL, 'job.create', NULL, NULL
     FROM lanes l
    CROSS JOIN LATERAL (
      SELECT id, request_id, key_no FROM jobs j
       WHERE j.project_no = l.project_no AND j.environment = l.environment AND j.region = l.region
         AND j.id < $2 AND j.key_no IS NOT NULL
       ORDER BY j.id DESC LIMIT $3) job
    WHERE $1::int IS NULL OR l.project_no = $1
    ORDER BY job.id DESC LIMIT $3)`;

const listOf = (entries: string) => `
SELECT entry.*, p.id AS project_id, k.id AS key_id, k.name AS key_name
  FROM (${entries}
  ) entry
  LEFT JOIN projects p ON p.no = entry.project_no
  LEFT JOIN api_keys k ON k.no = entry.key_no
 ORDER BY entry.id DESC LIMIT $3`;

const LIST = listOf(`${entriesWhere("true")}
  UNION ALL${CREATED_JOBS}`);
const LIST_OF_OPERATORS = listOf(entriesWhere("operator IS NOT NULL"));

type Row = {
  id: string;
  request_id: string;
  at: number | null;
  action: AuditAction;
  project_id: string | null;
  environment: number | null;
  subject: string | null;
  detail: unknown;
} & ({ operator: string } | { operator: null; key_id: string; key_name: string | null });
