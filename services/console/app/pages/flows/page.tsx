import { useState } from "preact/hooks";
import type { FlowKey } from "../../../../../shared/client/flows.ts";
import { useAction } from "../../data/action.ts";
import { useList } from "../../data/list.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { may, useSession } from "../../data/session.ts";
import { Form, TextField } from "../../ui/form.tsx";
import { ListPage } from "../../ui/list-page.tsx";
import { ScopeNote } from "../../ui/page.tsx";
import { Status, Time } from "../../ui/small.tsx";
import type { Column } from "../../ui/table.tsx";
import { countText } from "../../ui/time.ts";
import { FlowPage } from "./flow.tsx";
import { rateText } from "./rate.ts";

/** `flows` and `flows/{key}`. */
export function FlowsPage({ rest: [key] }: { rest: readonly string[] }) {
  return key === undefined ? <FlowList /> : <FlowPage flowKey={key} />;
}

function FlowList() {
  const session = useSession();
  const list = useList(
    "flows",
    (page, signal) => session.client.flows.list(page, { signal }),
    (flow) => flow.key,
  );
  return (
    <ListPage
      page="flows"
      title="Flow keys"
      about="Limits below the project's, for all jobs that name the same key."
      list={list}
      columns={COLUMNS}
      none={NONE}
    >
      {may(session, "flows", "write") ? <OpenKey /> : <ScopeNote session={session} what="change flow keys" />}
    </ListPage>
  );
}

const NONE = {
  title: "No flow keys",
  text:
    "A job or a schedule names a key, and with it how many attempts may be in progress or may start in a while. A key that holds " +
    "nothing is forgotten after a day, unless it is pinned.",
};

/** A key that is not known yet can be given limits before any job names it. */
function OpenKey() {
  const [key, setKey] = useState("");
  const open = useAction(async () => goTo(hrefOf("flows", [key.trim()])));
  return (
    <Form class="filters" onSubmit={() => key.trim() !== "" && open.run()}>
      <TextField
        class="wide"
        label="Flow key"
        value={key}
        onInput={setKey}
        placeholder="account:4711"
        dataKey="/"
      />
      <div>
        <button type="submit" class="button">
          Open
        </button>
      </div>
    </Form>
  );
}

const COLUMNS: readonly Column<FlowKey>[] = [
  { title: "Key", cell: ({ key }) => <code title={key}>{key}</code> },
  {
    title: "State",
    width: "100px",
    narrow: "92px",
    cell: ({ paused }) => <Status status={paused ? "paused" : "active"} />,
  },
  {
    title: "In use",
    width: "110px",
    narrow: "72px",
    isRight: true,
    cell: ({ in_use, concurrency }) =>
      concurrency === null ? countText(in_use) : `${in_use} of ${concurrency}`,
  },
  { title: "Rate", width: "170px", from: "medium", cell: ({ rate }) => rateText(rate) },
  {
    title: "Waiting",
    width: "90px",
    narrow: "72px",
    isRight: true,
    cell: ({ waiting }) => countText(waiting),
  },
  {
    title: "Next start",
    width: "164px",
    isRight: true,
    from: "medium",
    cell: ({ next_start_at }) => <Time at={next_start_at} />,
  },
];
