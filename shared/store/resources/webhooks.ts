import { and, count, eq, sql } from "drizzle-orm";
import { idToUuid, uuidToId, WEBHOOK_PREFIX } from "../../domain/ids.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../../domain/plan.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { hostOfTarget } from "../../domain/target.ts";
import { type EndpointFields, type EndpointStatus, OLD_SECRET_HOURS } from "../../domain/webhook.ts";
import {
  environmentCode,
  environmentOf,
  eventListCode,
  eventListOf,
  eventTypesMask,
} from "../database/codes.ts";
import { type Database, StoreUnavailable } from "../database/database.ts";
import { webhooks } from "../database/schema/resources.ts";
import { type KeyCause, recordChange } from "./audit.ts";
import { type KeyToTake, keepAnswer, takeKeyFrom } from "./idempotency.ts";

/**
 * Endpoints as clients make and change them. Claims and settlements of the whole node wait for the rows of a flow and of an
 * endpoint; so these are locked by statements that commit themselves, and not across a round trip. The one exception is
 * the creation that first brings a project's flow a kind of event: it locks the flow by its last statement before it
 * commits, so that a refused one leaves nothing.
 */

export interface WebhookRow extends EndpointFields {
  id: string;
  projectNo: ProjectNo;
  environment: Environment;
  sealedSecret: Buffer;
}

type Scope = { projectNo: ProjectNo; environment: Environment };

/** Creates an endpoint, unless the environment has as many as it may have. */
export async function createWebhook(
  db: Database,
  webhook: WebhookRow,
  cause: KeyCause,
  key: (KeyToTake & { answer: Buffer }) | null,
): Promise<"created" | "limit_exceeded" | "key_taken"> {
  const { id, projectNo, environment } = webhook;
  return db.transact(async (tx) => {
    // The project's creations wait for each other here, and only they.
    await tx.run("lock_project", "SELECT FROM projects WHERE no = $1 FOR NO KEY UPDATE", [projectNo]);
    const [found] = await tx.drizzle
      .select({ count: count() })
      .from(webhooks)
      .where(and(eq(webhooks.projectNo, projectNo), inEnvironment(webhook)));
    if ((found?.count ?? 0) >= WEBHOOK_ENDPOINTS_MAX) return "limit_exceeded";
    if (key !== null && !(await keepAnswer(tx, webhook, key, key.answer))) return "key_taken";
    await recordChange(tx.drizzle, cause, {
      projectNo,
      environment,
      subject: id,
      action: "webhook.create",
      detail: detailOf(webhook),
    });
    await tx.drizzle.insert(webhooks).values({
      projectNo,
      environment: environmentCode(environment),
      id: idToUuid(id),
      sealedSecret: webhook.sealedSecret,
      ...columnsOf(webhook),
    });
    await subscribe(tx, webhook);
    return "created";
  });
}

/**
 * Notes what an endpoint is going to want, no later than it does: it is what the settlement of a job asks first. The mask
 * only grows. What nobody wants any more costs a settlement one look that finds no endpoint; what is missing costs events.
 * A flow that knows already, as all but the first few times, is not locked.
 */
async function subscribe(
  db: Pick<Database, "run">,
  { projectNo, environment, events }: Scope & Pick<EndpointFields, "events">,
): Promise<void> {
  await db.run("subscribe", SUBSCRIBE, [
    projectNo,
    eventTypesMask(events) << (2 * environmentCode(environment)),
  ]);
}

const SUBSCRIBE = `
UPDATE flows SET subscriptions = subscriptions | $2::smallint WHERE project_no = $1 AND subscriptions & $2 <> $2`;

/** One endpoint, or null if this environment has none of that id. */
export async function findWebhook(
  db: Pick<Database, "drizzle">,
  scope: Scope,
  id: string,
): Promise<WebhookRow | null> {
  const [row] = await db.drizzle.select().from(webhooks).where(isOne(scope, id));
  return row === undefined ? null : readWebhook(row);
}

/** A page of an environment's endpoints, newest first. */
export async function listWebhooks(
  db: Database,
  query: Scope & { status: EndpointStatus | null; beforeId: string | null; limit: number },
): Promise<WebhookRow[]> {
  const { projectNo, status, beforeId, limit } = query;
  const rows = await db.drizzle
    .select()
    .from(webhooks)
    .where(
      and(
        eq(webhooks.projectNo, projectNo),
        inEnvironment(query),
        status === null ? undefined : eq(webhooks.enabled, status === "enabled"),
        beforeId === null ? undefined : sql`${webhooks.id} < ${idToUuid(beforeId)}`,
      ),
    )
    .orderBy(sql`${webhooks.id} DESC`)
    .limit(limit);
  return rows.map(readWebhook);
}

/**
 * Changes one endpoint to what `decide` makes of it; what it throws changes nothing. Null if this environment has none of
 * that id. A disabling waits for claims under way, and none that comes after finds anything that was owed before. To
 * enable begins new 48 hours.
 */
export async function changeWebhook(
  db: Database,
  scope: Scope,
  id: string,
  decide: (webhook: WebhookRow) => EndpointFields,
  cause: KeyCause,
): Promise<WebhookRow | null> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const webhook = await findWebhook(db, scope, id);
    if (webhook === null) return null;
    const changed = { ...webhook, ...decide(webhook) };
    const [before, after] = [columnsOf(webhook), columnsOf(changed)];
    if (JSON.stringify(before) === JSON.stringify(after)) return webhook;
    await subscribe(db, changed);
    const rows = await db.run("change_webhook", CHANGE, [
      ...placeOf(scope, id),
      ...[before, after].flatMap(({ url, events, description, enabled }) => [
        url,
        events,
        description,
        enabled,
      ]),
      ...causeOf(cause),
      id,
      JSON.stringify(detailOf(changed)),
      hostOfTarget(webhook.url),
    ]);
    if (rows.length === 1) return changed;
  }
  throw movedTooOften(id);
}

/** Somebody else changed it between the look and the statement: a client, or a settlement that disabled it. */
const LOOKS_MAX = 20;
const movedTooOften = (id: string) =>
  new StoreUnavailable(`endpoint ${id} moved ${LOOKS_MAX} times while it was being changed`);

/** What is parked for the endpoint at its host so far does not wait for that host any more (parked.ts). */
const leaveHost = (left: string, host: string) => `left_host AS (
  INSERT INTO left_hosts (project_no, environment, webhook_id, host) SELECT $1, $2, $3, ${host}::text FROM ${left}
      ON CONFLICT (webhook_id, host) DO UPDATE SET left_at = excluded.left_at
)`;

const CHANGE = `
WITH changed AS (
  UPDATE webhooks
     SET url = $8, events = $9, description = $10, enabled = $11,
         generation = generation + CASE WHEN $7::boolean AND NOT $11::boolean THEN 1 ELSE 0 END,
         failing_since = CASE WHEN $11 AND NOT $7 THEN NULL ELSE failing_since END
   WHERE project_no = $1 AND environment = $2 AND id = $3
     AND url = $4 AND events = $5 AND description IS NOT DISTINCT FROM $6 AND enabled = $7
  RETURNING id, url
), ${leaveHost("changed WHERE url <> $4", "$16")}, audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject, detail)
  SELECT $12, $1, $2, $13, 'webhook.update', $14, $15::json FROM changed
)
SELECT id FROM changed`;

/** Deletes one endpoint, and with it the right to whatever is owed to it. False if this environment has none of that id. */
export async function deleteWebhook(
  db: Database,
  scope: Scope,
  id: string,
  cause: KeyCause,
): Promise<boolean> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const webhook = await findWebhook(db, scope, id);
    if (webhook === null) return false;
    const { url } = webhook;
    const rows = await db.run("delete_webhook", DELETE, [
      ...placeOf(scope, id),
      ...causeOf(cause),
      id,
      url,
      hostOfTarget(url),
    ]);
    if (rows.length === 1) return true;
  }
  throw movedTooOften(id);
}

const DELETE = `
WITH deleted AS (
  DELETE FROM webhooks WHERE project_no = $1 AND environment = $2 AND id = $3 AND url = $7 RETURNING id
), ${leaveHost("deleted", "$8")}, audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject)
  SELECT $4, $1, $2, $5, 'webhook.delete', $6 FROM deleted
)
SELECT id FROM deleted`;

export type RotatedWebhook =
  | { kind: "rotated"; webhook: WebhookRow }
  | { kind: "not_found" }
  | { kind: "key_taken" };

/** Gives an endpoint a new secret. The one before signs as well for OLD_SECRET_HOURS; one that still did so ends now. */
export async function rotateWebhookSecret(
  db: Database,
  scope: Scope,
  id: string,
  sealedSecret: Buffer,
  cause: KeyCause,
  key: (KeyToTake & { answerOf: (webhook: WebhookRow) => Buffer }) | null,
): Promise<RotatedWebhook> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const webhook = await findWebhook(db, scope, id);
    if (webhook === null) return { kind: "not_found" };
    const { url, events, description, enabled } = columnsOf(webhook);
    const [row] = await db.run<{ outcome: "rotated" | "key_taken" }>("rotate_webhook", ROTATE, [
      ...placeOf(scope, id),
      ...[url, events, description, enabled],
      sealedSecret,
      OLD_SECRET_HOURS,
      ...causeOf(cause),
      id,
      key?.digest ?? null,
      key?.requestHash ?? null,
      key?.answerOf(webhook) ?? null,
    ]);
    if (row?.outcome === "rotated") return { kind: "rotated", webhook: { ...webhook, sealedSecret } };
    if (row?.outcome === "key_taken") return { kind: "key_taken" };
  }
  throw movedTooOften(id);
}

const ROTATE = `
WITH endpoint AS MATERIALIZED (
  SELECT sealed_secret FROM webhooks
   WHERE project_no = $1 AND environment = $2 AND id = $3
     AND url = $4 AND events = $5 AND description IS NOT DISTINCT FROM $6 AND enabled = $7
     FOR NO KEY UPDATE
), key AS (${takeKeyFrom("endpoint", { digest: "$13", requestHash: "$14", answer: "$15" })}
), decided AS MATERIALIZED (
  SELECT sealed_secret, CASE WHEN $13::bytea IS NOT NULL AND NOT EXISTS (SELECT FROM key) THEN 'key_taken' ELSE 'rotated' END AS outcome
    FROM endpoint
), rotated AS (
  UPDATE webhooks w
     SET sealed_secret = $8, sealed_old_secret = d.sealed_secret, old_secret_until = now() + $9::int * interval '1 h'
    FROM decided d
   WHERE d.outcome = 'rotated' AND w.project_no = $1 AND w.environment = $2 AND w.id = $3
), audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject)
  SELECT $10, $1, $2, $11, 'webhook.rotate', $12 FROM decided WHERE outcome = 'rotated'
)
SELECT outcome FROM decided`;

const placeOf = ({ projectNo, environment }: Scope, id: string) => [
  projectNo,
  environmentCode(environment),
  idToUuid(id),
];

const causeOf = ({ requestId, keyNo }: KeyCause) => [idToUuid(requestId), keyNo];

const inEnvironment = ({ environment }: Scope) => eq(webhooks.environment, environmentCode(environment));

function isOne(scope: Scope, id: string) {
  return and(eq(webhooks.projectNo, scope.projectNo), inEnvironment(scope), eq(webhooks.id, idToUuid(id)));
}

/** The path of a URL may be what keeps others from writing there. */
const detailOf = ({ url, events, status }: EndpointFields) => ({
  origin: new URL(url).origin,
  events,
  status,
});

function columnsOf({ url, events, status, description }: EndpointFields) {
  return { url, events: eventListCode(events), enabled: status === "enabled", description };
}

function readWebhook(row: typeof webhooks.$inferSelect): WebhookRow {
  return {
    id: uuidToId(WEBHOOK_PREFIX, row.id),
    projectNo: row.projectNo,
    environment: environmentOf(row.environment),
    url: row.url,
    events: eventListOf(row.events),
    status: row.enabled ? "enabled" : "disabled",
    description: row.description,
    sealedSecret: row.sealedSecret,
  };
}
