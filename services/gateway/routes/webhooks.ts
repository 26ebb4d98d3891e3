import { randomBytes } from "node:crypto";
import { viewList } from "../../../shared/contract/list.ts";
import {
  readNewWebhook,
  readWebhookListQuery,
  readWebhookUpdate,
  viewWebhook,
} from "../../../shared/contract/webhook.ts";
import { ApiError, resourceNotFound } from "../../../shared/domain/errors.ts";
import { idTimeMs, retypeId, WEBHOOK_PREFIX } from "../../../shared/domain/ids.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../../../shared/domain/plan.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { makeSecret, maskSecret } from "../../../shared/domain/signing.ts";
import type { TargetRules } from "../../../shared/domain/target.ts";
import { decideEndpointChange, decideNewEndpoint } from "../../../shared/domain/webhook.ts";
import type { Seal } from "../../../shared/platform/seal/seal.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import {
  changeWebhook,
  createWebhook,
  deleteWebhook,
  findWebhook,
  listWebhooks,
  rotateWebhookSecret,
  type WebhookRow,
} from "../../../shared/store/resources/webhooks.ts";
import type { ApiAnswer } from "../request/answer.ts";
import { BODY_BYTES_MAX, type BodyRules } from "../request/body.ts";
import { keptAnswer } from "./kept-answer.ts";
import { createOneAtATime } from "./one-at-a-time.ts";
import type { Pager } from "./pager.ts";
import { readPathId } from "./path-id.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

const BODY: BodyRules = { payload: "none", bytesMax: BODY_BYTES_MAX };

type DeliveryRouteId = "testWebhook" | "listDeliveries" | "retryDelivery";

/** The routes of webhook endpoints. Deliveries have routes of their own. */
export function webhookRoutes(options: {
  db: Database;
  pager: Pager;
  targets: TargetRules;
  seal: Seal;
  shardsPerRegion: number;
}): Omit<RoutesOf<"webhooks">, DeliveryRouteId> {
  const { db, pager, targets, seal, shardsPerRegion } = options;

  const inTurn = createOneAtATime();
  /** Changes of one endpoint wait for each other: of many at the same time only one would succeed. */
  const changing = <Result>(scope: ApiRequest["scope"], webhookId: string, act: () => Promise<Result>) =>
    inTurn(JSON.stringify([scope, webhookId]), act);

  const viewMasked = (webhook: WebhookRow) => view(webhook, maskSecret(seal.open(webhook.sealedSecret)));
  /** The text that shows a new secret. It is sealed when it is kept for an Idempotency-Key. */
  const revealedText = (webhook: WebhookRow, secret: string) => JSON.stringify(view(webhook, secret));

  return {
    createWebhook: {
      body: BODY,
      async create(request, key, body) {
        parseQuery(request.query, []);
        const fields = decideNewEndpoint(readNewWebhook(body.value), targets);
        const cause = request.cause();
        const secret = makeSecret(randomBytes);
        const webhook: WebhookRow = {
          id: retypeId(cause.requestId, WEBHOOK_PREFIX),
          ...request.scope,
          ...fields,
          sealedSecret: seal.seal(secret),
        };
        const text = revealedText(webhook, secret);
        const keyWithAnswer = key === null ? null : { ...key, answer: seal.seal(text) };
        switch (await createWebhook(db, webhook, cause, keyWithAnswer)) {
          case "key_taken":
            return "key_taken";
          case "limit_exceeded":
            throw new ApiError(
              "plan_limit_exceeded",
              `The environment's limit of ${WEBHOOK_ENDPOINTS_MAX} webhook endpoints is reached.`,
            );
          case "created":
            return { status: 201, text };
        }
      },
      replay: async (_request, first) => keptAnswer(201, first, seal.open),
    },
    listWebhooks: {
      body: null,
      answerBytesMax: WEBHOOK_PAGE_BYTES_MAX,
      async answer({ caller, scope, query }) {
        const asked = readWebhookListQuery(query);
        const { status } = asked;
        const walk = pager.walk("GET /v2/webhooks", caller, asked, { status });
        const { beforeId, rowsMax: limit } = walk;
        const found = await listWebhooks(db, { ...scope, status, beforeId, limit });
        const { rows, nextCursor } = walk.page(found);
        return { status: 200, text: JSON.stringify(viewList(rows.map(viewMasked), nextCursor)) };
      },
    },
    getWebhook: {
      body: null,
      async answer({ scope, id, query }) {
        const webhookId = readPathId(WEBHOOK_PREFIX, id);
        parseQuery(query, []);
        return answerMasked(await findWebhook(db, scope, webhookId));
      },
    },
    updateWebhook: {
      body: BODY,
      async answer({ scope, id, query, cause }, body) {
        const webhookId = readPathId(WEBHOOK_PREFIX, id);
        parseQuery(query, []);
        // The body is read here, so that an unknown endpoint is answered 404 before any fault of the body.
        const decide = (webhook: WebhookRow) =>
          decideEndpointChange(webhook, readWebhookUpdate(body.value), targets);
        const shard = shardOf(scope.projectNo, shardsPerRegion);
        const change = () => changeWebhook(db, scope, webhookId, decide, cause(), shard);
        return answerMasked(await changing(scope, webhookId, change));
      },
    },
    deleteWebhook: {
      body: null,
      async answer({ scope, id, query, cause }) {
        const webhookId = readPathId(WEBHOOK_PREFIX, id);
        parseQuery(query, []);
        if (!(await deleteWebhook(db, scope, webhookId, cause()))) throw resourceNotFound();
        return { status: 200, text: JSON.stringify({ id: webhookId, deleted: true }) };
      },
    },
    rotateWebhookSecret: {
      body: null,
      async create({ scope, id, query, cause }, key) {
        const webhookId = readPathId(WEBHOOK_PREFIX, id);
        parseQuery(query, []);
        const secret = makeSecret(randomBytes);
        const answerOf = (webhook: WebhookRow) => seal.seal(revealedText(webhook, secret));
        const keyWithAnswer = key === null ? null : { ...key, answerOf };
        const sealed = seal.seal(secret);
        const rotate = () => rotateWebhookSecret(db, scope, webhookId, sealed, cause(), keyWithAnswer);
        const rotated = await changing(scope, webhookId, rotate);
        if (rotated === "not_found") throw resourceNotFound();
        return rotated === "key_taken" ? rotated : { status: 200, text: revealedText(rotated, secret) };
      },
      replay: async (_request, first) => keptAnswer(200, first, seal.open),
    },
  };

  function answerMasked(webhook: WebhookRow | "not_found" | null): ApiAnswer {
    if (webhook === null || webhook === "not_found") throw resourceNotFound();
    return { status: 200, text: JSON.stringify(viewMasked(webhook)) };
  }
}

/** A URL of 2,048 characters and a description of 200, each of up to four bytes, and some short fields. */
const WEBHOOK_PAGE_BYTES_MAX = WEBHOOK_ENDPOINTS_MAX * 9_216;

const view = (webhook: WebhookRow, secret: string) =>
  viewWebhook({ ...webhook, createdAt: idTimeMs(webhook.id) }, secret);
