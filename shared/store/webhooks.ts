import { and, eq, sql } from "drizzle-orm";
import { idToUuid, uuidToId, WEBHOOK_PREFIX } from "../domain/ids.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../domain/plan.ts";
import type { Environment, ProjectNo } from "../domain/scope.ts";
import { type EndpointFields, type EndpointStatus, OLD_SECRET_HOURS } from "../domain/webhook.ts";
import { type KeyCause, recordChange } from "./audit.ts";
import { environmentCode, environmentOf, eventTypesMask, eventTypesOf } from "./codes.ts";
import type { Database, Transaction } from "./database.ts";
import { type KeyToTake, keepAnswer } from "./idempotency.ts";
import { webhooks } from "./schema.ts";

/**
 * Endpoints as clients make and change them. Every change locks the project's row first: changes of one project wait for
 * each other, so that each sees all endpoints that there are, and `subscriptions` never lacks what one of them wants. The
 * flow, which every claim and settlement of the project waits for, is locked by the last statement alone, and before the
 * endpoint, as they do it. A settlement may disable an endpoint at any time before that.
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
    const mates = await lockWebhooks(tx, projectNo);
    if (mates.filter((mate) => mate.environment === environment).length >= WEBHOOK_ENDPOINTS_MAX)
      return "limit_exceeded";
    if (key !== null && !(await keepAnswer(tx, webhook, key, key.answer))) return "key_taken";
    await recordChange(tx.drizzle, cause, {
      ...changeOf(webhook, id),
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
    await tx.run("note_subscriptions", "UPDATE flows SET subscriptions = $2 WHERE project_no = $1", [
      projectNo,
      subscriptionsOf([...mates, webhook]),
    ]);
    return "created";
  });
}

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
 * that id. To disable it waits for claims under way, and none that comes after finds anything that was owed before. To
 * enable begins new 48 hours.
 */
export async function changeWebhook(
  db: Database,
  scope: Scope,
  id: string,
  decide: (webhook: WebhookRow) => EndpointFields,
  cause: KeyCause,
): Promise<WebhookRow | null> {
  return db.transact(async (tx) => {
    const all = await lockWebhooks(tx, scope.projectNo);
    const webhook = all.find((mate) => mate.id === id && mate.environment === scope.environment);
    if (webhook === undefined) return null;
    const changed = { ...webhook, ...decide(webhook) };
    const columns = columnsOf(changed);
    if (JSON.stringify(columns) === JSON.stringify(columnsOf(webhook))) return webhook;
    await recordChange(tx.drizzle, cause, {
      ...changeOf(scope, id),
      action: "webhook.update",
      detail: detailOf(changed),
    });
    const [row] = await tx.run<{ enabled: boolean }>("change_webhook", CHANGE, [
      ...placeOf(scope, id),
      columns.url,
      columns.events,
      columns.description,
      // What was not asked for may have been changed by a settlement meanwhile, and that stands.
      changed.status === webhook.status ? null : columns.enabled,
      subscriptionsOf(all.map((mate) => (mate === webhook ? changed : mate))),
    ]);
    return { ...changed, status: row?.enabled ? "enabled" : "disabled" };
  });
}

const CHANGE = `
WITH flow AS MATERIALIZED (
  SELECT project_no FROM flows WHERE project_no = $1 FOR NO KEY UPDATE
), changed AS (
  UPDATE webhooks w
     SET url = $4, events = $5, description = $6, enabled = coalesce($7, w.enabled),
         generation = w.generation + CASE WHEN NOT $7 AND w.enabled THEN 1 ELSE 0 END,
         failing_since = CASE WHEN $7 THEN NULL ELSE w.failing_since END
    FROM flow
   WHERE w.project_no = $1 AND w.environment = $2 AND w.id = $3
  RETURNING w.enabled
), noted AS (
  UPDATE flows SET subscriptions = $8 WHERE project_no = $1
)
SELECT enabled FROM changed`;

/** Deletes one endpoint, and with it the right to whatever is owed to it. False if this environment has none of that id. */
export async function deleteWebhook(
  db: Database,
  scope: Scope,
  id: string,
  cause: KeyCause,
): Promise<boolean> {
  return db.transact(async (tx) => {
    const all = await lockWebhooks(tx, scope.projectNo);
    const others = all.filter((mate) => mate.id !== id || mate.environment !== scope.environment);
    if (others.length === all.length) return false;
    await recordChange(tx.drizzle, cause, { ...changeOf(scope, id), action: "webhook.delete" });
    await tx.run("delete_webhook", DELETE, [...placeOf(scope, id), subscriptionsOf(others)]);
    return true;
  });
}

const DELETE = `
WITH flow AS MATERIALIZED (
  SELECT project_no FROM flows WHERE project_no = $1 FOR NO KEY UPDATE
), noted AS (
  UPDATE flows SET subscriptions = $4 WHERE project_no = $1
)
DELETE FROM webhooks w USING flow WHERE w.project_no = $1 AND w.environment = $2 AND w.id = $3`;

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
  return db.transact(async (tx) => {
    await lockProject(tx, scope.projectNo);
    const webhook = await findWebhook(tx, scope, id);
    if (webhook === null) return { kind: "not_found" };
    if (key !== null && !(await keepAnswer(tx, scope, key, key.answerOf(webhook))))
      return { kind: "key_taken" };
    await recordChange(tx.drizzle, cause, { ...changeOf(scope, id), action: "webhook.rotate" });
    await tx.drizzle
      .update(webhooks)
      .set({
        sealedSecret,
        sealedOldSecret: webhook.sealedSecret,
        oldSecretUntil: sql`now() + ${OLD_SECRET_HOURS}::int * interval '1 h'`,
      })
      .where(isOne(scope, id));
    return { kind: "rotated", webhook: { ...webhook, sealedSecret } };
  });
}

async function lockProject(tx: Transaction, projectNo: ProjectNo): Promise<void> {
  await tx.run("lock_project", "SELECT FROM projects WHERE no = $1 FOR NO KEY UPDATE", [projectNo]);
}

/** All endpoints of a project, which no client changes until the transaction ends. */
async function lockWebhooks(tx: Transaction, projectNo: ProjectNo): Promise<WebhookRow[]> {
  await lockProject(tx, projectNo);
  const rows = await tx.drizzle.select().from(webhooks).where(eq(webhooks.projectNo, projectNo));
  return rows.map(readWebhook);
}

/** Which events of which environment some endpoint wants to hear of: what the settlement of a job asks first. */
function subscriptionsOf(all: readonly WebhookRow[]): number {
  return all
    .filter(({ status }) => status === "enabled")
    .reduce(
      (mask, { environment, events }) =>
        mask | (eventTypesMask(events) << (2 * environmentCode(environment))),
      0,
    );
}

const placeOf = ({ projectNo, environment }: Scope, id: string) => [
  projectNo,
  environmentCode(environment),
  idToUuid(id),
];

const inEnvironment = ({ environment }: Scope) => eq(webhooks.environment, environmentCode(environment));

function isOne(scope: Scope, id: string) {
  return and(eq(webhooks.projectNo, scope.projectNo), inEnvironment(scope), eq(webhooks.id, idToUuid(id)));
}

const changeOf = ({ projectNo, environment }: Scope, subject: string) => ({
  projectNo,
  environment,
  subject,
});

/** The path of a URL may be what keeps others from writing there. */
const detailOf = ({ url, events, status }: EndpointFields) => ({
  origin: new URL(url).origin,
  events,
  status,
});

function columnsOf({ url, events, status, description }: EndpointFields) {
  return { url, events: eventTypesMask(events), enabled: status === "enabled", description };
}

function readWebhook(row: typeof webhooks.$inferSelect): WebhookRow {
  return {
    id: uuidToId(WEBHOOK_PREFIX, row.id),
    projectNo: row.projectNo,
    environment: environmentOf(row.environment),
    url: row.url,
    events: eventTypesOf(row.events),
    status: row.enabled ? "enabled" : "disabled",
    description: row.description,
    sealedSecret: row.sealedSecret,
  };
}
