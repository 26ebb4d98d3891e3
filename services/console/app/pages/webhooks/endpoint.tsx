import { useState } from "preact/hooks";
import type { RevealedWebhook, Webhook } from "../../../../../shared/client/webhooks.ts";
import { OLD_SECRET_HOURS } from "../../../../../shared/domain/webhook.ts";
import { useAction, usePost } from "../../data/action.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, type Session, useSession } from "../../data/session.ts";
import { Confirm, tell } from "../../ui/dialog.tsx";
import { Card, NotYet, PageHead, ScopeNote, Trouble } from "../../ui/page.tsx";
import { Id, Link, Secret, Status, Time } from "../../ui/small.tsx";
import { Deliveries } from "./deliveries.tsx";
import { Recipe } from "./recipe.tsx";

/** One endpoint: what was sent to it, what came back, and how it is verified. */
export function WebhookPage({ id }: { id: string }) {
  const session = useSession();
  const query = useQuery(`webhook ${id}`, (signal) => session.client.webhooks.get(id, { signal }), {
    requests: 1,
  });
  const [secret, setSecret] = useState<string | null>(null);
  const [changes, setChanges] = useState(0);
  const { data: webhook, error } = query;
  const trail = { href: hrefOf("webhooks"), label: "Webhooks" };
  if (webhook === undefined) {
    return (
      <>
        <PageHead title="Endpoint" trail={trail} />
        <NotYet query={query} what="the endpoint" />
      </>
    );
  }
  const onChanged = () => {
    query.reload();
    setChanges(changes + 1);
  };
  return (
    <>
      <PageHead
        title={webhook.description ?? webhook.url}
        trail={trail}
        beside={<Status status={webhook.status} />}
        actions={
          <Actions
            session={session}
            webhook={webhook}
            onChanged={onChanged}
            onSecret={({ secret: text }) => setSecret(text)}
          />
        }
      />
      <div class="stack">
        <Trouble error={error} onRetry={query.reload} />
        {secret !== null && (
          <Secret text={secret}>
            {`This is the new signing secret, shown this once. For ${OLD_SECRET_HOURS} hours the one before it signs too.`}
          </Secret>
        )}
        <div class="main-and-side">
          <Deliveries session={session} webhook={webhook} changes={changes} />
          <Facts webhook={webhook} />
        </div>
        <Recipe />
      </div>
    </>
  );
}

function Facts({ webhook }: { webhook: Webhook }) {
  return (
    <Card title="Facts">
      <dl class="facts">
        <dt>URL</dt>
        <dd>{webhook.url}</dd>
        <dt>Events</dt>
        <dd>
          {webhook.events.map((type) => (
            <div key={type}>
              <code>{type}</code>
            </div>
          ))}
        </dd>
        <dt>Secret</dt>
        <dd>
          <code>{webhook.secret}</code>
        </dd>
        <dt>Created</dt>
        <dd>
          <Time at={webhook.created_at} />
        </dd>
        <dt>Id</dt>
        <dd>
          <Id id={webhook.id} />
        </dd>
      </dl>
    </Card>
  );
}

type Asked = "rotate" | "disable" | "delete" | null;

function Actions(props: {
  session: Session;
  webhook: Webhook;
  onChanged: () => void;
  onSecret: (webhook: RevealedWebhook) => void;
}) {
  const { session, webhook, onChanged, onSecret } = props;
  const { webhooks } = session.client;
  const [asked, setAsked] = useState<Asked>(null);
  /** Closes the dialog of this render, and none that was opened since. */
  const close = () => setAsked((now) => (now === asked ? null : now));
  const done = (text: string) => {
    close();
    tell(text);
    onChanged();
  };
  const test = usePost(async (options) => {
    await webhooks.test(webhook.id, options);
    done("A signed sample is on its way.");
  });
  const enable = useAction(async () => {
    await webhooks.enable(webhook.id);
    done("The endpoint is enabled.");
  });
  const disable = useAction(async () => {
    await webhooks.disable(webhook.id);
    done("The endpoint is disabled.");
  });
  const rotate = usePost(async (options) => {
    onSecret(await webhooks.rotate(webhook.id, options));
    done("The secret is rotated.");
  });
  const remove = useAction(async () => {
    await webhooks.delete(webhook.id);
    tell("The endpoint is deleted.");
    goTo(hrefOf("webhooks"));
  });
  if (!may(session, "webhooks", "write")) return <ScopeNote session={session} what="change endpoints" />;
  const isEnabled = webhook.status === "enabled";
  return (
    <>
      {isEnabled ? (
        <button type="button" class="button" disabled={test.isBusy} onClick={() => test.run()}>
          Send a test
        </button>
      ) : (
        <button type="button" class="button first" disabled={enable.isBusy} onClick={() => enable.run()}>
          Enable
        </button>
      )}
      <Link class="button" href={hrefOf("webhooks", [webhook.id, "edit"])}>
        Edit
      </Link>
      <button type="button" class="button" onClick={() => setAsked("rotate")}>
        Rotate the secret
      </button>
      {isEnabled && (
        <button type="button" class="button" onClick={() => setAsked("disable")}>
          Disable
        </button>
      )}
      <button type="button" class="button" onClick={() => setAsked("delete")}>
        Delete
      </button>
      <Trouble error={test.error ?? enable.error} />
      {asked === "rotate" && (
        <Confirm title="Rotate the secret?" verb="Rotate the secret" action={rotate} onClose={close}>
          <p>{`For ${OLD_SECRET_HOURS} hours requests are signed with both. A secret that is ending from a rotation before ends at once.`}</p>
        </Confirm>
      )}
      {asked === "disable" && (
        <Confirm title="Disable this endpoint?" verb="Disable it" isDanger action={disable} onClose={close}>
          <p>What is owed to it is dropped. Enabling it again does not bring it back.</p>
        </Confirm>
      )}
      {asked === "delete" && (
        <Confirm
          title="Delete this endpoint?"
          verb="Delete the endpoint"
          isDanger
          action={remove}
          onClose={close}
        >
          <p class="break">
            Nothing more is sent to <strong>{webhook.url}</strong>, and what is owed to it is dropped.
          </p>
        </Confirm>
      )}
    </>
  );
}
