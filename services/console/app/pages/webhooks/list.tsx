import type { Webhook } from "../../../../../shared/client/webhooks.ts";
import { ENDPOINT_STATUSES, type EndpointStatus } from "../../../../../shared/domain/webhook.ts";
import { useList } from "../../data/list.ts";
import { hrefOf, place, setFilters } from "../../data/place.ts";
import { live } from "../../data/preferences.ts";
import { may, useSession } from "../../data/session.ts";
import { Filters, optionsOf, SelectField } from "../../ui/form.tsx";
import { Empty, Live, PageHead } from "../../ui/page.tsx";
import { Link, Status, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";

export function WebhookList() {
  const session = useSession();
  const status = place.value.query.get("status") ?? "";
  const filter = status === "" ? {} : { status: status as EndpointStatus };
  const list = useList(
    `webhooks ${status}`,
    (page, signal) => session.client.webhooks.list({ ...filter, ...page }, { signal }),
    { idOf: (webhook) => webhook.id, isLive: live.value === "on" },
  );
  const create = may(session, "webhooks", "write") && (
    <Link class="button first" href={hrefOf("webhooks", ["new"])}>
      <span data-key="c">Add an endpoint</span>
    </Link>
  );
  return (
    <>
      <PageHead
        name="Webhooks"
        title="Webhooks"
        actions={
          <>
            <Live {...list} />
            {create}
          </>
        }
      />
      <Filters>
        <SelectField
          label="Status"
          value={status}
          onChange={(value) => setFilters({ status: value })}
          options={optionsOf(ENDPOINT_STATUSES, "any")}
        />
      </Filters>
      <Table
        label="Webhook endpoints"
        columns={COLUMNS}
        list={list}
        idOf={(webhook) => webhook.id}
        hrefOf={(webhook) => hrefOf("webhooks", [webhook.id])}
        empty={
          status === "" ? (
            <Empty title="No endpoints yet" action={create}>
              An endpoint is told by a signed request how each job ended, and whatever else it asks for. What
              it does not take is sent again for 48 hours.
            </Empty>
          ) : (
            <Empty title={`No endpoint is ${status}`} />
          )
        }
      />
    </>
  );
}

const COLUMNS: readonly Column<Webhook>[] = [
  { title: "Endpoint", cell: ({ url }) => <span title={url}>{url}</span> },
  { title: "Status", width: "112px", narrow: "104px", cell: ({ status }) => <Status status={status} /> },
  {
    title: "Description",
    width: "180px",
    from: "medium",
    cell: ({ description }) => <span title={description ?? ""}>{description ?? ""}</span>,
  },
  {
    title: "Events",
    width: "220px",
    from: "medium",
    cell: ({ events }) => <span title={events.join("\n")}>{events.join(", ")}</span>,
  },
  {
    title: "Created",
    width: "164px",
    isRight: true,
    from: "medium",
    cell: (webhook) => <Time at={webhook.created_at} />,
  },
];
