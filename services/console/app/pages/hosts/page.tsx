import { useState } from "preact/hooks";
import type { Host, HostListQuery } from "../../../../../shared/client/hosts.ts";
import {
  HOST_DOWN_ATTEMPTS_MIN,
  HOST_DOWN_SECONDS_MIN,
  HOST_STATES,
} from "../../../../../shared/domain/host-state.ts";
import { faultOf, useAction, usePost } from "../../data/action.ts";
import { useList } from "../../data/list.ts";
import { filtersOf } from "../../data/place.ts";
import { may, noteProject, type Session, useSession } from "../../data/session.ts";
import { Confirm, tell } from "../../ui/dialog.tsx";
import { CheckField, FilterSelect, Filters, Form, optionsOf, TextField } from "../../ui/form.tsx";
import { Card, Empty, Live, PageHead, ScopeNote, Trouble } from "../../ui/page.tsx";
import { Status, Time } from "../../ui/small.tsx";
import { type Column, Table } from "../../ui/table.tsx";
import { countText } from "../../ui/time.ts";

type Asked = { act: "open" | "park"; host: string } | null;

/** Target hosts that are down or come back, and what is parked at them. */
export function HostsPage() {
  const session = useSession();
  const { hosts } = session.client;
  const filters = filtersOf(["state"]);
  const list = useList(
    `hosts ${filters.state}`,
    (page, signal) => hosts.list({ ...(filters as HostListQuery), ...page }, { signal }),
    (host) => host.host,
  );
  const [asked, setAsked] = useState<Asked>(null);
  const act = usePost(async (options) => {
    if (asked === null) return;
    await hosts[asked.act](asked.host, options);
    tell(asked.act === "park" ? "The host is parked." : "The host is opened: what was parked starts slowly.");
    // The visitor may have closed the dialog and opened the one of another host meanwhile.
    setAsked((now) => (now === asked ? null : now));
    list.reload();
  }, asked);
  const close = () => {
    act.clear();
    setAsked(null);
  };
  const mayWrite = may(session, "hosts", "write");
  return (
    <>
      <PageHead title="Hosts" actions={<Live {...list} />}>
        Hosts that are down or come back. What is due at a host that is down is parked there: it spends no
        attempt.
      </PageHead>
      <div class="stack">
        <div>
          <Filters>
            <FilterSelect label="State" name="state" options={optionsOf(HOST_STATES, "any")} />
          </Filters>
          <Table
            label="Hosts"
            columns={mayWrite ? [...COLUMNS, openColumn((host) => setAsked({ act: "open", host }))] : COLUMNS}
            list={list}
            empty={<Empty title={`No host is ${filters.state ?? "down"}`} />}
          />
        </div>
        {mayWrite ? (
          <div class="columns">
            <Park
              onAsk={(host) => setAsked({ act: "park", host })}
              error={asked === null ? act.error : undefined}
            />
            <Breaker session={session} />
          </div>
        ) : (
          <ScopeNote session={session} what="park or open hosts" />
        )}
      </div>
      {asked !== null && (
        <Confirm
          title={asked.act === "park" ? "Park this host?" : "Open this host?"}
          verb={asked.act === "park" ? "Park it" : "Open it"}
          isDanger={asked.act === "park"}
          action={act}
          onClose={close}
        >
          <p class="break">
            <strong>{asked.host}</strong>
            {asked.act === "park"
              ? " gets nothing until it is opened. What is due there waits, and spends no attempt."
              : " gets what is parked: one attempt a second at first, and twice as many after each 10 seconds."}
          </p>
        </Confirm>
      )}
    </>
  );
}

const COLUMNS: readonly Column<Host>[] = [
  { title: "Host", cell: ({ host }) => host, hint: ({ host }) => host },
  { title: "State", width: "100px", narrow: "92px", cell: ({ state }) => <Status status={state} /> },
  { title: "By", width: "84px", from: "medium", cell: ({ by }) => by },
  { title: "Since", width: "164px", from: "medium", cell: ({ since }) => <Time at={since} /> },
  { title: "Parked", width: "86px", narrow: "66px", isRight: true, cell: ({ parked }) => countText(parked) },
  {
    title: "Next probe",
    width: "164px",
    isRight: true,
    from: "medium",
    cell: ({ next_probe_at }) => <Time at={next_probe_at} otherwise="none" />,
  },
];

function openColumn(onOpen: (host: string) => void): Column<Host> {
  return {
    title: "Change",
    width: "90px",
    narrow: "76px",
    isRight: true,
    cell: ({ host, state }) =>
      state === "down" && (
        <button type="button" class="button compact" aria-label={`Open ${host}`} onClick={() => onOpen(host)}>
          Open
        </button>
      ),
  };
}

function Park({ onAsk, error }: { onAsk: (host: string) => void; error: unknown }) {
  const [host, setHost] = useState("");
  return (
    <Card title="Park a host">
      <Form label="Park" onSubmit={() => host.trim() !== "" && onAsk(host.trim())}>
        <TextField
          label="Host name"
          value={host}
          onInput={setHost}
          placeholder="api.example.com"
          hint="A name or an address without a port."
          fault={faultOf(error, "host")}
        />
        <div>
          <button type="submit" class="button">
            Park the host
          </button>
        </div>
      </Form>
    </Card>
  );
}

/** The setting by which failing hosts are parked automatically. */
function Breaker({ session }: { session: Session }) {
  const isOn = session.project.park_failing_hosts === true;
  const save = useAction(async (wanted: boolean) => {
    noteProject(await session.client.project.update({ park_failing_hosts: wanted }));
    tell(wanted ? "Failing hosts are parked from now on." : "Failing hosts are not parked any more.");
  });
  return (
    <Card title="Failing hosts">
      <CheckField
        label="Park hosts that fail"
        isOn={save.isBusy ? !isOn : isOn}
        onChange={(wanted) => save.run(wanted)}
        hint={`After ${HOST_DOWN_ATTEMPTS_MIN} attempts in a row over ${HOST_DOWN_SECONDS_MIN} seconds that found nobody, a host is down. One attempt at a time finds out whether it is back.`}
      />
      <Trouble error={save.error} />
    </Card>
  );
}
