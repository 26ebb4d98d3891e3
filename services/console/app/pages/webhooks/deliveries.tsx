import { useEffect, useState } from "preact/hooks";
import type { Delivery, DeliveryListQuery, Webhook } from "../../../../../shared/client/webhooks.ts";
import { DELIVERY_RETENTION_DAYS, DELIVERY_STATUSES } from "../../../../../shared/domain/webhook.ts";
import { usePost } from "../../data/action.ts";
import { useList } from "../../data/list.ts";
import { filtersOf, hrefOf } from "../../data/place.ts";
import { may, type Session } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { FilterSelect, optionsOf } from "../../ui/form.tsx";
import { Card, Empty, Live, Loading, Trouble } from "../../ui/page.tsx";
import { Block, Link, Status, Time } from "../../ui/small.tsx";
import { durationText } from "../../ui/time.ts";

/** Each delivery is several lines high. */
const PAGE = 20;

/**
 * The deliveries to the endpoint and their answers. They load again whenever an action on the endpoint adds to
 * `changes`.
 */
export function Deliveries(props: { session: Session; webhook: Webhook; changes: number }) {
  const { session, webhook, changes } = props;
  const filters = filtersOf(["status"]);
  const list = useList(
    `deliveries ${webhook.id} ${filters.status}`,
    (page, signal) =>
      session.client.webhooks.deliveries(
        webhook.id,
        { ...(filters as DeliveryListQuery), ...page, limit: PAGE },
        { signal },
      ),
    (delivery) => delivery.id,
  );
  const { reload } = list;
  useEffect(() => {
    if (changes > 0) reload();
  }, [changes]);
  return (
    <Card title="Deliveries" head={<Live {...list} />}>
      <div class="filters">
        <FilterSelect label="Status" name="status" options={optionsOf(DELIVERY_STATUSES, "any")} />
      </div>
      {list.items.length === 0 && list.loadedAt === null && list.error === undefined && (
        <Loading what="the deliveries" />
      )}
      {list.items.length === 0 && list.loadedAt !== null && (
        <Empty
          title={filters.status === undefined ? "Nothing was sent yet" : `No delivery is ${filters.status}`}
        >
          {filters.status === undefined && "Send a test to see one."}
        </Empty>
      )}
      <div class="stack-close">
        {list.items.map((delivery) => (
          <OneDelivery
            key={delivery.id}
            session={session}
            delivery={delivery}
            isEnabled={webhook.status === "enabled"}
            onSent={reload}
          />
        ))}
      </div>
      <Trouble error={list.error} onRetry={list.reload} />
      {list.hasMore ? (
        <div>
          <button type="button" class="button" onClick={list.more}>
            Older deliveries
          </button>
        </div>
      ) : (
        list.items.length > 0 && (
          <p class="note">{`These are all of the last ${DELIVERY_RETENTION_DAYS} days.`}</p>
        )
      )}
    </Card>
  );
}

function OneDelivery(props: {
  session: Session;
  delivery: Delivery;
  isEnabled: boolean;
  onSent: () => void;
}) {
  const { session, delivery, isEnabled, onSent } = props;
  const [isOpen, setIsOpen] = useState(false);
  const resend = usePost(async (options) => {
    await session.client.webhooks.retry(delivery.webhook_id, delivery.id, options);
    tell("It is being sent again.");
    onSent();
  });
  const { attempts } = delivery;
  const last = attempts.at(-1);
  return (
    <article class="attempt" aria-label={delivery.event_id}>
      <div class="attempt-head">
        <Status status={delivery.status} />
        <code>{delivery.event_type}</code>
        {delivery.job_id !== null && <Link href={hrefOf("jobs", [delivery.job_id])}>its job</Link>}
        <span class="muted">
          <Time at={delivery.created_at} />
        </span>
        {last?.response_status != null && <span class="muted number">{`HTTP ${last.response_status}`}</span>}
        <button
          type="button"
          class="button compact"
          aria-expanded={isOpen}
          onClick={() => setIsOpen(!isOpen)}
        >
          {attempts.length === 1 ? "1 attempt" : `${attempts.length} attempts`}
        </button>
        {may(session, "webhooks", "write") && isEnabled && (
          <button type="button" class="button compact" disabled={resend.isBusy} onClick={() => resend.run()}>
            Resend
          </button>
        )}
      </div>
      <Trouble error={resend.error} />
      {delivery.next_attempt_at !== null && (
        <p class="note">
          {"Next attempt "}
          <Time at={delivery.next_attempt_at} />
        </p>
      )}
      {isOpen && (
        <ol class="stack-close">
          {attempts.map((attempt) => (
            <li key={attempt.attempt} class="stack-close">
              <div class="attempt-head">
                <strong class="number">{`Attempt ${attempt.attempt}`}</strong>
                <Status status={attempt.status} />
                <span class="muted number">
                  {[
                    attempt.response_status !== null && `HTTP ${attempt.response_status}`,
                    durationText(attempt.duration_ms),
                  ]
                    .filter(Boolean)
                    .join(" · ")}
                </span>
                <span class="muted">
                  <Time at={attempt.started_at} />
                </span>
              </div>
              {attempt.error !== null && (
                <Block what={`the error of attempt ${attempt.attempt}`}>{attempt.error}</Block>
              )}
            </li>
          ))}
          <li class="note break">{`Event ${delivery.event_id}`}</li>
        </ol>
      )}
    </article>
  );
}
