import { useState } from "preact/hooks";
import type { ApiKey } from "../../../../../shared/client/keys.ts";
import { KEY_SCOPES, type KeyScope } from "../../../../../shared/domain/key.ts";
import {
  KEY_LIFE_HOURS_MAX,
  OVERLAP_HOURS_DEFAULT,
  OVERLAP_HOURS_MAX,
} from "../../../../../shared/domain/key-life.ts";
import { faultOf, useAction, usePost } from "../../data/action.ts";
import { useList } from "../../data/list.ts";
import type { Session } from "../../data/session.ts";
import { Confirm, Dialog, tell } from "../../ui/dialog.tsx";
import { Form, FormFoot, optionsOf, SelectField, TextField } from "../../ui/form.tsx";
import { Empty } from "../../ui/page.tsx";
import { Secret, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";

/** The keys of the environment: made, replaced and revoked. */

type Asked = { kind: "create" } | { kind: "rotate" | "revoke"; key: ApiKey } | null;

export function ApiKeys({ session }: { session: Session }) {
  const { keys } = session.client;
  const [asked, setAsked] = useState<Asked>(null);
  const [revealed, setRevealed] = useState<string | null>(null);
  const list = useList(
    "keys",
    (page, signal) => keys.list(page, { signal }),
    (key) => key.id,
    { isLive: false },
  );
  /** Closes the dialog of this render, and none that was opened since. */
  const close = () => setAsked((now) => (now === asked ? null : now));
  const onRevealed = (text: string) => {
    close();
    setRevealed(text);
    list.reload();
  };
  const revoke = useAction(async () => {
    if (asked?.kind !== "revoke") return;
    await keys.delete(asked.key.id);
    close();
    tell("The key is revoked. Within 5 seconds no gateway takes it.");
    list.reload();
  });
  return (
    <section class="stack-close" aria-label="API keys">
      <div class="card-head">
        <h2>{`API keys of ${session.environment}`}</h2>
        <button type="button" class="button first" data-key="c" onClick={() => setAsked({ kind: "create" })}>
          Make a key
        </button>
      </div>
      {revealed !== null && <Secret text={revealed}>This is the new key. It is shown this once.</Secret>}
      <Table label="API keys" columns={columnsOf(setAsked)} list={list} empty={<Empty title="No keys" />} />
      {asked?.kind === "create" && <MakeKey session={session} onMade={onRevealed} onClose={close} />}
      {asked?.kind === "rotate" && (
        <RotateKey session={session} apiKey={asked.key} onMade={onRevealed} onClose={close} />
      )}
      {asked?.kind === "revoke" && (
        <Confirm
          title="Revoke this key?"
          verb="Revoke the key"
          isDanger
          action={revoke}
          onClose={() => {
            revoke.clear();
            close();
          }}
        >
          <p class="break">
            <strong>{nameOf(asked.key)}</strong> stops working within 5 seconds. Who uses it is refused from
            then on.
          </p>
        </Confirm>
      )}
    </section>
  );
}

const nameOf = ({ name, id }: ApiKey) => name ?? id;

function columnsOf(ask: (asked: Asked) => void): readonly Column<ApiKey>[] {
  return [
    { title: "Name", cell: nameOf, hint: (key) => key.id },
    { title: "Scope", width: "80px", narrow: "64px", cell: ({ scope }) => scope },
    { title: "Created", width: "160px", from: "medium", cell: (key) => <Time at={key.created_at} /> },
    {
      title: "Last use",
      width: "160px",
      from: "medium",
      cell: (key) => <Time at={key.last_used_at} otherwise="never" />,
    },
    {
      title: "Expires",
      width: "160px",
      from: "medium",
      cell: (key) => <Time at={key.expires_at} otherwise="never" />,
    },
    {
      title: "Change",
      width: "168px",
      narrow: "150px",
      isRight: true,
      cell: (key) => (
        <>
          <button
            type="button"
            class="button compact"
            aria-label={`Rotate ${nameOf(key)}`}
            onClick={() => ask({ kind: "rotate", key })}
          >
            Rotate
          </button>{" "}
          <button
            type="button"
            class="button compact"
            aria-label={`Revoke ${nameOf(key)}`}
            onClick={() => ask({ kind: "revoke", key })}
          >
            Revoke
          </button>
        </>
      ),
    },
  ];
}

function MakeKey(props: { session: Session; onMade: (text: string) => void; onClose: () => void }) {
  const { session, onMade, onClose } = props;
  const [name, setName] = useState("");
  const [scope, setScope] = useState<KeyScope>("read");
  const [hours, setHours] = useState("");
  const wish = { scope, ...(name && { name }), ...(hours && { expires_in_hours: Number(hours) }) };
  const make = usePost(async (options) => {
    onMade((await session.client.keys.create(wish, options)).key);
  }, wish);
  return (
    <Dialog title={`Make a key of ${session.environment}`} onClose={onClose}>
      <Form label="Key" onSubmit={make.run}>
        <TextField
          label="Name"
          value={name}
          onInput={setName}
          placeholder="deployment"
          fault={faultOf(make.error, "name")}
          hasFocus
        />
        <SelectField
          label="Scope"
          value={scope}
          onChange={(value) => setScope(value as KeyScope)}
          options={optionsOf(KEY_SCOPES)}
          hint={SCOPE_HINTS[scope]}
          fault={faultOf(make.error, "scope")}
        />
        <TextField
          label="Expires in hours"
          type="number"
          value={hours}
          onInput={setHours}
          placeholder="never"
          min={1}
          max={KEY_LIFE_HOURS_MAX}
          fault={faultOf(make.error, "expires_in_hours")}
        />
        <FormFoot verb="Make the key" action={make} back={onClose} />
      </Form>
    </Dialog>
  );
}

const SCOPE_HINTS: Record<KeyScope, string> = {
  full: "Everything, keys included.",
  read: "Reads everything but keys.",
  jobs: "Everything with jobs, runs and bulk operations, and nothing else.",
};

function RotateKey(props: {
  session: Session;
  apiKey: ApiKey;
  onMade: (text: string) => void;
  onClose: () => void;
}) {
  const { session, apiKey, onMade, onClose } = props;
  const [hours, setHours] = useState("");
  const wish = hours === "" ? {} : { overlap_hours: Number(hours) };
  const rotate = usePost(async (options) => {
    onMade((await session.client.keys.rotate(apiKey.id, wish, options)).key);
  }, wish);
  return (
    <Dialog title={`Rotate ${nameOf(apiKey)}`} onClose={onClose}>
      <p>
        A successor with the same name and scope is made. The key itself goes on for a while, so that programs
        can change over.
      </p>
      <Form label="Rotate" onSubmit={rotate.run}>
        <TextField
          label="Hours until the key ends"
          type="number"
          value={hours}
          onInput={setHours}
          placeholder={String(OVERLAP_HOURS_DEFAULT)}
          min={0}
          max={OVERLAP_HOURS_MAX}
          fault={faultOf(rotate.error, "overlap_hours")}
          hasFocus
        />
        <FormFoot verb="Rotate the key" action={rotate} back={onClose} />
      </Form>
    </Dialog>
  );
}
