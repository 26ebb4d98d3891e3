import { and, count, eq, sql } from "drizzle-orm";
import { idToUuid, uuidToId, WEBHOOK_PREFIX } from "../../domain/ids.ts";
import { HOME_REGION, WEBHOOK_ENDPOINTS_MAX } from "../../domain/plan.ts";
import type { Environment, ProjectNo, Scope } from "../../domain/scope.ts";
import { hostOfTarget } from "../../domain/target.ts";
import { type EndpointFields, type EndpointStatus, OLD_SECRET_HOURS } from "../../domain/webhook.ts";
import {
  environmentCode,
  environmentOf,
  eventListCode,
  eventListOf,
  eventOrder,
  regionCode,
  subscriptionsOf,
} from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { lookAgain } from "../database/look-again.ts";
import { webhooks } from "../database/schema/resources.ts";
import { setEnabled, tellOfDisabling } from "../queue/endpoint-health.ts";
import { auditFrom, changeOf, type KeyCause, recordChange } from "./audit.ts";
import { type KeyToTake, keepAnswer, keyOf, madeFrom, readMade, takeKeyFrom } from "./idempotency.ts";
import { lockProject } from "./lock-project.ts";

/**
 * Endpoints as clients make and change them. Claims and settlements of a whole node wait for the rows of a flow and of an
 * endpoint, so only statements that commit themselves lock these rows. There is one exception: a creation that brings a
 * project its first endpoint for a kind of event locks the flow by the last statement before its commit, so that a refused
 * creation leaves nothing.
 */

export interface WebhookRow extends EndpointFields {
  id: string;
  projectNo: ProjectNo;
  environment: Environment;
  sealedSecret: Buffer;
}

/** Creates an endpoint, unless the environment has as many as it may have. */
export async function createWebhook(
  db: Database,
  webhook: WebhookRow,
  cause: KeyCause,
  key: (KeyToTake & { answer: Buffer }) | null,
): Promise<"created" | "limit_exceeded" | "key_taken"> {
  const { id, projectNo, environment } = webhook;
  return db.transact(async (tx) => {
    // Creations of endpoints and schedules of the project wait for each other here.
    await lockProject(tx, projectNo);
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
      url: webhook.url,
      events: eventListCode(webhook.events),
      eventOrder: eventOrder(webhook.events),
      enabled: webhook.status === "enabled",
      description: webhook.description,
    });
    await subscribe(tx, webhook);
    return "created";
  });
}

/**
 * Notes in the project's flow the events that an endpoint is going to hear of, before it hears of any: a settlement looks
 * for endpoints only if the flow says that there may be one. The mask only grows: a bit too many costs a settlement one
 * look, a bit too few would cost events. The statement locks the flow only if a bit is missing, which is rare.
 */
async function subscribe(
  db: Pick<Database, "run">,
  { projectNo, environment, events }: Scope & Pick<EndpointFields, "events">,
): Promise<void> {
  const heard = subscriptionsOf(environment, events);
  if (heard !== 0) await db.run("subscribe", SUBSCRIBE, [projectNo, heard]);
}

const SUBSCRIBE = `
UPDATE flows SET subscriptions = subscriptions | $2::smallint WHERE project_no = $1 AND subscriptions & $2 <> $2`;

/** One endpoint, or null if this environment has no endpoint with this id. */
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
 * Changes one endpoint to the state that `decide` answers. If that disables it, the other endpoints of the environment are
 * told by deliveries in the home region, where the project has `shard`; sweeps find these. A disabling waits for claims
 * under way, and no later claim finds anything that was owed before.
 */
export function changeWebhook(
  db: Database,
  scope: Scope,
  id: string,
  decide: (webhook: WebhookRow) => EndpointFields,
  cause: KeyCause,
  shard: number,
): Promise<WebhookRow | "not_found"> {
  return lookAgain(id, async () => {
    const webhook = await findWebhook(db, scope, id);
    if (webhook === null) return "not_found";
    const changed = { ...webhook, ...decide(webhook) };
    const [seen, next] = [seenOf(webhook), seenOf(changed)];
    if (JSON.stringify(seen) === JSON.stringify(next)) return webhook;
    await subscribe(db, changed);
    const values = [...changeOf(scope, id, cause), ...seen, ...next, JSON.stringify(detailOf(changed))];
    const rows = await db.run("change_webhook", CHANGE, [...values, hostOfTarget(webhook.url), shard]);
    return rows.length === 1 ? changed : null;
  });
}

/** The columns that a change compares. A settlement that disables the endpoint, or a client that changes it, changes them. */
const seenOf = ({ url, events, description, status }: EndpointFields) => [
  url,
  eventListCode(events),
  eventOrder(events),
  description,
  status === "enabled",
];
/** The endpoint if its columns are as they were read. `first` is the number of the first parameter of seenOf. */
const asSeen = (first: number) => `project_no = $1 AND environment = $2 AND id = $3
     AND url = $${first} AND events = $${first + 1} AND event_order IS NOT DISTINCT FROM $${first + 2}::smallint[]
     AND description IS NOT DISTINCT FROM $${first + 3} AND enabled = $${first + 4}`;

/** Notes that attempts which are parked for the endpoint at its old host do not wait for that host any more (parked.ts). */
const leaveHost = (left: string, host: string) => `left_host AS (
  INSERT INTO left_hosts (project_no, environment, webhook_id, host) SELECT $1, $2, $3, ${host}::text FROM ${left}
      ON CONFLICT (webhook_id, host) DO UPDATE SET left_at = excluded.left_at
)`;

const CHANGE = `
WITH changed AS (
  UPDATE webhooks
     SET url = $12, events = $13, event_order = $14, description = $15, ${setEnabled("$16::boolean")}
   WHERE ${asSeen(7)}
  RETURNING id, url, generation
), ${leaveHost("changed WHERE url <> $7", "$18")}, disabled AS MATERIALIZED (
  SELECT 'disabled ' || id || ' ' || generation AS seed, $1::int AS project_no, $2::smallint AS environment, id, url,
         ${regionCode(HOME_REGION)}::smallint AS region, $19::smallint AS shard
    FROM changed WHERE $11 AND NOT $16
), ${tellOfDisabling("disabled", "patched")}, ${auditFrom("webhook.update", "changed", "$17")}
SELECT FROM changed`;

/** Deletes one endpoint; claims drop what is owed to it. False if this environment has no endpoint with this id. */
export function deleteWebhook(db: Database, scope: Scope, id: string, cause: KeyCause): Promise<boolean> {
  return lookAgain(id, async () => {
    const webhook = await findWebhook(db, scope, id);
    if (webhook === null) return false;
    const values = [...changeOf(scope, id, cause), ...seenOf(webhook), hostOfTarget(webhook.url)];
    const rows = await db.run("delete_webhook", DELETE, values);
    return rows.length === 1 ? true : null;
  });
}

const DELETE = `
WITH deleted AS (
  DELETE FROM webhooks WHERE ${asSeen(7)} RETURNING id
), ${leaveHost("deleted", "$12")}, ${auditFrom("webhook.delete", "deleted")}
SELECT FROM deleted`;

/** Gives an endpoint a new secret. The secret before it signs for OLD_SECRET_HOURS more; an older one ends now. */
export function rotateWebhookSecret(
  db: Database,
  scope: Scope,
  id: string,
  sealedSecret: Buffer,
  cause: KeyCause,
  key: (KeyToTake & { answerOf: (webhook: WebhookRow) => Buffer }) | null,
): Promise<WebhookRow | "not_found" | "key_taken"> {
  return lookAgain(id, async () => {
    const webhook = await findWebhook(db, scope, id);
    if (webhook === null) return "not_found";
    const rows = await db.run<{ is_made: boolean }>("rotate_webhook", ROTATE, [
      ...changeOf(scope, id, cause),
      ...keyOf(key, key?.answerOf(webhook)),
      ...seenOf(webhook),
      sealedSecret,
      OLD_SECRET_HOURS,
    ]);
    const outcome = readMade(rows);
    return outcome === "made" ? { ...webhook, sealedSecret } : outcome;
  });
}

const ROTATE = `
WITH endpoint AS MATERIALIZED (
  SELECT sealed_secret FROM webhooks
   WHERE ${asSeen(10)}
     FOR NO KEY UPDATE
), ${takeKeyFrom("endpoint")}, rotated AS (
  UPDATE webhooks w
     SET sealed_secret = $15, sealed_old_secret = made.sealed_secret, old_secret_until = now() + $16::int * interval '1 h'
    FROM made
   WHERE w.project_no = $1 AND w.environment = $2 AND w.id = $3
), ${auditFrom("webhook.rotate", "made")}
${madeFrom("endpoint")}`;

const inEnvironment = ({ environment }: Scope) => eq(webhooks.environment, environmentCode(environment));

function isOne(scope: Scope, id: string) {
  return and(eq(webhooks.projectNo, scope.projectNo), inEnvironment(scope), eq(webhooks.id, idToUuid(id)));
}

/** The audit shows only the URL's origin, because the path may be a secret. */
const detailOf = ({ url, events, status }: EndpointFields) => ({
  origin: new URL(url).origin,
  events,
  status,
});

function readWebhook(row: typeof webhooks.$inferSelect): WebhookRow {
  return {
    id: uuidToId(WEBHOOK_PREFIX, row.id),
    projectNo: row.projectNo,
    environment: environmentOf(row.environment),
    url: row.url,
    events: eventListOf(row.events, row.eventOrder),
    status: row.enabled ? "enabled" : "disabled",
    description: row.description,
    sealedSecret: row.sealedSecret,
  };
}
