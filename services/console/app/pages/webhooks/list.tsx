import type { Webhook, WebhookListQuery } from "../../../../../shared/client/webhooks.ts";
import { DELIVERY_WINDOW_HOURS } from "../../../../../shared/domain/delivery.ts";
import { ENDPOINT_STATUSES } from "../../../../../shared/domain/webhook.ts";
import { useList } from "../../data/list.ts";
import { filtersOf } from "../../data/place.ts";
import { useSession } from "../../data/session.ts";
import { FilterSelect, Filters, optionsOf } from "../../ui/form.tsx";
import { ListPage } from "../../ui/list-page.tsx";
import { Status, Time } from "../../ui/small.tsx";
import type { Column } from "../../ui/table.tsx";

export function WebhookList() {
  const { client } = useSession();
  const filters = filtersOf(["status"]);
  const list = useList(
    `webhooks ${filters.status}`,
    (page, signal) => client.webhooks.list({ ...(filters as WebhookListQuery), ...page }, { signal }),
    (webhook) => webhook.id,
  );
  return (
    <ListPage
      page="webhooks"
      title="Webhooks"
      list={list}
      columns={COLUMNS}
      create="Add an endpoint"
      none={NONE}
      noMatch={filters.status === undefined ? null : `No endpoint is ${filters.status}`}
    >
      <Filters>
        <FilterSelect label="Status" name="status" options={optionsOf(ENDPOINT_STATUSES, "any")} />
      </Filters>
    </ListPage>
  );
}

const NONE = {
  title: "No endpoints yet",
  text:
    "An endpoint is told by a signed request how each job ended, and whatever else it asks for. What it does not take is sent again " +
    `for ${DELIVERY_WINDOW_HOURS} hours.`,
};

const COLUMNS: readonly Column<Webhook>[] = [
  { title: "Endpoint", cell: ({ url }) => url, hint: ({ url }) => url },
  { title: "Status", width: "112px", narrow: "104px", cell: ({ status }) => <Status status={status} /> },
  {
    title: "Description",
    width: "180px",
    from: "medium",
    cell: ({ description }) => description,
    hint: ({ description }) => description ?? "",
  },
  {
    title: "Events",
    width: "220px",
    from: "medium",
    cell: ({ events }) => events.join(", "),
    hint: ({ events }) => events.join("\n"),
  },
  {
    title: "Created",
    width: "164px",
    isRight: true,
    from: "medium",
    cell: (webhook) => <Time at={webhook.created_at} />,
  },
];
