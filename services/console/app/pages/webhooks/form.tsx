import { useState } from "preact/hooks";
import type { RevealedWebhook, Webhook } from "../../../../../shared/client/webhooks.ts";
import { EVENT_TYPES, type EventType, JOB_END_TYPES } from "../../../../../shared/domain/webhook.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { CheckField, Form, FormFoot, TextField } from "../../ui/form.tsx";
import { Card, FormPage, NotYet } from "../../ui/page.tsx";
import { Link, Secret } from "../../ui/small.tsx";
import { Recipe } from "./recipe.tsx";

/** Adds an endpoint, or changes one. */
export function WebhookFormPage({ id }: { id: string | null }) {
  const { client } = useSession();
  const query = useQuery(`webhook form ${id}`, async (signal) => {
    return { webhook: id === null ? null : await client.webhooks.get(id, { signal }) };
  });
  const trail =
    id === null
      ? { href: hrefOf("webhooks"), label: "Webhooks" }
      : { href: hrefOf("webhooks", [id]), label: "Endpoint" };
  return (
    <FormPage
      title={id === null ? "Add an endpoint" : "Edit the endpoint"}
      trail={trail}
      resource="webhooks"
      what="change endpoints"
    >
      {query.data === undefined ? (
        <NotYet query={query} what="the endpoint" />
      ) : (
        <WebhookForm webhook={query.data.webhook} back={trail.href} />
      )}
    </FormPage>
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
      <Form label="Endpoint" onSubmit={save.run}>
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
        <FormFoot verb={webhook === null ? "Add the endpoint" : "Save"} action={save} back={back} />
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
