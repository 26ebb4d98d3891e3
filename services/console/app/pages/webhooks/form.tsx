import { useState } from "preact/hooks";
import type { RevealedWebhook, Webhook } from "../../../../../shared/client/webhooks.ts";
import { EVENT_TYPES, type EventType, JOB_END_TYPES } from "../../../../../shared/domain/webhook.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, useSession } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { CheckField, Form, TextField } from "../../ui/form.tsx";
import { Card, Empty, Loading, PageHead, ScopeNote, Trouble } from "../../ui/page.tsx";
import { Link, Secret } from "../../ui/small.tsx";
import { Recipe } from "./recipe.tsx";

/** Adds an endpoint, or changes one. */
export function WebhookFormPage({ id }: { id: string | null }) {
  const session = useSession();
  const query = useQuery(`webhook form ${id}`, async (signal) => {
    return { webhook: id === null ? null : await session.client.webhooks.get(id, { signal }) };
  });
  const title = id === null ? "Add an endpoint" : "Edit the endpoint";
  const back = id === null ? hrefOf("webhooks") : hrefOf("webhooks", [id]);
  const head = (
    <PageHead title={title} trail={{ href: back, label: id === null ? "Webhooks" : "Endpoint" }} />
  );
  if (!may(session, "webhooks", "write")) {
    return (
      <>
        {head}
        <Empty title="Not with this key">
          <ScopeNote session={session} what="change endpoints" />
        </Empty>
      </>
    );
  }
  return (
    <>
      {head}
      {query.data !== undefined ? (
        <WebhookForm webhook={query.data.webhook} back={back} />
      ) : query.error !== undefined ? (
        <Trouble error={query.error} onRetry={query.reload} />
      ) : (
        <Loading what="the endpoint" />
      )}
    </>
  );
}

function WebhookForm({ webhook, back }: { webhook: Webhook | null; back: string }) {
  const { webhooks } = useSession().client;
  const [url, setUrl] = useState(webhook?.url ?? "");
  const [description, setDescription] = useState(webhook?.description ?? "");
  const [events, setEvents] = useState<readonly EventType[]>(webhook?.events ?? JOB_END_TYPES);
  const [revealed, setRevealed] = useState<RevealedWebhook | null>(null);
  const wish = { url, events: [...events], ...(description && { description }) };
  const save = usePost(async (options) => {
    if (webhook !== null) {
      await webhooks.update(webhook.id, { ...wish, description: description || null });
      tell("The endpoint is changed.");
      goTo(back);
      return;
    }
    setRevealed(await webhooks.create(wish, options));
  }, wish);
  if (revealed !== null) return <Revealed webhook={revealed} />;
  const fault = (param: string) => faultOf(save.error, param);
  return (
    <Card>
      <Form label="Endpoint" onSubmit={() => save.run()}>
        <TextField
          label="URL"
          type="url"
          value={url}
          onInput={setUrl}
          placeholder="https://example.com/hooks/jobwheel"
          isMono
          hasFocus
          fault={fault("url")}
        />
        <TextField
          label="Description"
          value={description}
          onInput={setDescription}
          placeholder="Billing"
          fault={fault("description")}
        />
        <fieldset class="choices">
          <legend class="legend">Events</legend>
          {EVENT_TYPES.map((type) => (
            <CheckField
              key={type}
              label={type}
              isOn={events.includes(type)}
              onChange={(isOn) =>
                setEvents(isOn ? [...events, type] : events.filter((other) => other !== type))
              }
            />
          ))}
          {fault("events") && <div class="fault">{fault("events")}</div>}
        </fieldset>
        <Trouble error={save.error} />
        <div class="buttons">
          <button type="submit" class="button first" disabled={save.isBusy}>
            {webhook === null ? "Add the endpoint" : "Save"}
          </button>
          <Link class="button" href={back}>
            Back
          </Link>
        </div>
      </Form>
    </Card>
  );
}

/** The endpoint is made. Its secret is here until one leaves the page. */
function Revealed({ webhook }: { webhook: RevealedWebhook }) {
  return (
    <div class="stack">
      <Card title="The endpoint is added">
        <Secret text={webhook.secret}>
          This is its signing secret. It is shown this once: keep it where your endpoint reads it.
        </Secret>
        <div>
          <Link class="button first" href={hrefOf("webhooks", [webhook.id])}>
            To the endpoint
          </Link>
        </div>
      </Card>
      <Recipe />
    </div>
  );
}
