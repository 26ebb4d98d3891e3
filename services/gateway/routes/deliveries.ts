import type { Bus } from "../../../shared/bus/bus.ts";
import { sendCommands } from "../../../shared/bus/hints.ts";
import { readDeliveryListQuery, viewDelivery } from "../../../shared/contract/delivery.ts";
import { sampleRun } from "../../../shared/contract/event-sample.ts";
import { resourceNotFound } from "../../../shared/domain/errors.ts";
import { DELIVERY_PREFIX, EVENT_PREFIX, retypeId, WEBHOOK_PREFIX } from "../../../shared/domain/ids.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import { HOME_REGION } from "../../../shared/domain/plan.ts";
import { ERROR_BYTES_MAX } from "../../../shared/domain/run.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { DELIVERY_ATTEMPTS_MAX, deliveriesSince } from "../../../shared/domain/webhook.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { oweSample, retryDelivery } from "../../../shared/store/resources/deliveries-by-hand.ts";
import {
  BYTES_PER_ATTEMPT,
  type DeliveryRow,
  listDeliveries,
  PAGE_BYTES_MAX,
} from "../../../shared/store/resources/delivery-log.ts";
import type { KeyToTake } from "../../../shared/store/resources/idempotency.ts";
import { findWebhook } from "../../../shared/store/resources/webhooks.ts";
import { keptAnswer } from "./kept-answer.ts";
import { type Pager, pageText } from "./pager.ts";
import { readPathId } from "./path-id.ts";
import type { RoutesOf } from "./route.ts";
import type { webhookRoutes } from "./webhooks.ts";

/** The routes of deliveries to webhook endpoints. */
export function deliveryRoutes(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  pager: Pager;
  shardsPerRegion: number;
}): Omit<RoutesOf<"webhooks">, keyof ReturnType<typeof webhookRoutes>> {
  const { db, bus, clock, pager, shardsPerRegion } = options;

  return {
    testWebhook: {
      body: null,
      async create(request, key) {
        const webhookId = readPathId(WEBHOOK_PREFIX, request.id);
        parseQuery(request.query, []);
        const { scope, caller } = request;
        const cause = request.cause();
        const sample = {
          eventId: retypeId(cause.requestId, EVENT_PREFIX),
          deliveryId: retypeId(cause.requestId, DELIVERY_PREFIX),
          apiVersion: caller.version,
          region: HOME_REGION,
          shard: shardOf(scope.projectNo, shardsPerRegion),
          runOf: sampleRun,
        };
        const owed = await oweSample(db, scope, webhookId, sample, cause, withAnswer(key));
        if (owed.kind === "key_taken") return "key_taken";
        if (owed.kind === "not_found") throw resourceNotFound();
        sendCommands(bus, owed.owed, clock.now());
        return { status: 200, text: textOf(owed.delivery) };
      },
      replay: async (_request, first) => keptAnswer(200, first),
    },
    listDeliveries: {
      body: null,
      answerBytesMax: DELIVERY_PAGE_BYTES_MAX,
      async answer({ caller, scope, id, query }) {
        const webhookId = readPathId(WEBHOOK_PREFIX, id);
        const asked = readDeliveryListQuery(query);
        const { status } = asked;
        if ((await findWebhook(db, scope, webhookId)) === null) throw resourceNotFound();
        const walk = pager.walk(`GET /v2/webhooks/${webhookId}/deliveries`, caller, asked, { status });
        const found = await listDeliveries(db, {
          ...scope,
          webhookId,
          status,
          sinceAt: deliveriesSince(clock.now()),
          beforeId: walk.beforeId,
          limit: walk.rowsMax,
        });
        const page = walk.page(found.rows, found.isCut);
        return { status: 200, text: await pageText(page, (delivery) => [textOf(delivery)], scope.projectNo) };
      },
    },
    retryDelivery: {
      body: null,
      async create(request, key) {
        const webhookId = readPathId(WEBHOOK_PREFIX, request.id);
        const id = readPathId(DELIVERY_PREFIX, request.innerId);
        parseQuery(request.query, []);
        const retried = await retryDelivery(
          db,
          { ...request.scope, sinceAt: deliveriesSince(clock.now()) },
          { webhookId, id },
          request.cause(),
          withAnswer(key),
        );
        if (retried.kind === "key_taken") return "key_taken";
        if (retried.kind === "not_found") throw resourceNotFound();
        sendCommands(bus, retried.owed, clock.now());
        return { status: 200, text: textOf(retried.delivery) };
      },
      replay: async (_request, first) => keptAnswer(200, first),
    },
  };
}

/** Doubled, because JSON may write each character as two. */
const DELIVERY_PAGE_BYTES_MAX =
  2 * (PAGE_BYTES_MAX + DELIVERY_ATTEMPTS_MAX * (ERROR_BYTES_MAX + BYTES_PER_ATTEMPT));

const textOf = (delivery: DeliveryRow) => JSON.stringify(viewDelivery(delivery));

function withAnswer(key: KeyToTake | null) {
  const answerOf = (delivery: DeliveryRow) => Buffer.from(textOf(delivery));
  return key === null ? null : { ...key, answerOf };
}
