import { useState } from "preact/hooks";
import { ApiError } from "../../../../../shared/client/errors.ts";
import type { FlowKey } from "../../../../../shared/client/flows.ts";
import { FLOW_CONCURRENCY_BOUNDS, FLOW_RATE_BOUNDS } from "../../../../../shared/domain/flow-key.ts";
import { faultOf, useAction } from "../../data/action.ts";
import { hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, useSession } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { CheckField, Form, TextField } from "../../ui/form.tsx";
import { Card, Live, Loading, PageHead, ScopeNote, Stat, Trouble } from "../../ui/page.tsx";
import { Link, Status, Time } from "../../ui/small.tsx";
import { countText } from "../../ui/time.ts";
import { rateOf, rateText } from "./rate.ts";

/** One flow key: how much of its limits is in use, and a form to change them. An unknown key has no limits. */
export function FlowPage({ flowKey }: { flowKey: string }) {
  const session = useSession();
  const { flows } = session.client;
  const query = useQuery(`flow ${flowKey}`, (signal) => findFlow(flows.get(flowKey, { signal }), flowKey), {
    requests: 1,
  });
  const { data: flow, error } = query;
  const toggle = useAction(async () => {
    await (flow?.paused ? flows.resume(flowKey) : flows.pause(flowKey));
    tell(flow?.paused ? "The key is resumed." : "The key is paused: nothing of it starts.");
    query.reload();
  });
  const mayWrite = may(session, "flows", "write");
  return (
    <>
      <PageHead
        title={flowKey}
        isCode
        trail={{ href: hrefOf("flows"), label: "Flow keys" }}
        beside={flow && <Status status={flow.paused ? "paused" : "active"} />}
        actions={
          <>
            <Live {...query} />
            {mayWrite && flow && (
              <button type="button" class="button" disabled={toggle.isBusy} onClick={() => toggle.run()}>
                {flow.paused ? "Resume" : "Pause"}
              </button>
            )}
          </>
        }
      />
      <div class="stack">
        <Trouble error={error ?? toggle.error} onRetry={query.reload} />
        {flow === undefined ? (
          error === undefined && <Loading what="the key" />
        ) : (
          <div class="columns">
            <Use flow={flow} />
            {mayWrite ? (
              <Limits
                key={JSON.stringify([flow.concurrency, flow.rate, flow.pinned])}
                flow={flow}
                onSaved={query.reload}
              />
            ) : (
              <ScopeNote session={session} what="change flow keys" />
            )}
          </div>
        )}
      </div>
    </>
  );
}

async function findFlow(call: Promise<FlowKey>, key: string): Promise<FlowKey> {
  try {
    return await call;
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "resource_not_found") throw error;
    const free = { concurrency: null, rate: null, paused: false, pinned: false };
    return { key, ...free, in_use: 0, waiting: 0, next_start_at: null };
  }
}

function Use({ flow }: { flow: FlowKey }) {
  return (
    <Card title="In use">
      <dl class="stats">
        <Stat
          name="Places"
          note={flow.concurrency === null ? "no limit" : `of ${countText(flow.concurrency)}`}
        >
          {countText(flow.in_use)}
        </Stat>
        <Stat name="Waiting" note="due, and kept by the key">
          {countText(flow.waiting)}
        </Stat>
      </dl>
      <dl class="facts">
        <dt>Rate</dt>
        <dd class="number">{rateText(flow.rate)}</dd>
        <dt>Next start by the rate</dt>
        <dd>
          <Time at={flow.next_start_at} otherwise="now" />
        </dd>
      </dl>
      <p class="note">
        <Link href={hrefOf("jobs", [], { flow_key: flow.key })}>Jobs of this key</Link>
      </p>
    </Card>
  );
}

const textOf = (value: number | undefined | null) => (value == null ? "" : String(value));

function Limits({ flow, onSaved }: { flow: FlowKey; onSaved: () => void }) {
  const { flows } = useSession().client;
  const [concurrency, setConcurrency] = useState(textOf(flow.concurrency));
  const [count, setCount] = useState(textOf(flow.rate?.count));
  const [perSeconds, setPerSeconds] = useState(textOf(flow.rate?.per_seconds));
  const [isPinned, setIsPinned] = useState(flow.pinned);
  const save = useAction(async () => {
    await flows.update(flow.key, {
      concurrency: concurrency === "" ? null : Number(concurrency),
      rate: rateOf(count, perSeconds),
      pinned: isPinned,
    });
    tell("The limits are changed.");
    onSaved();
  });
  const fault = (param: string) => faultOf(save.error, param);
  return (
    <Card title="Limits">
      <Form label="Limits" onSubmit={() => save.run()}>
        <TextField
          label="Attempts at once"
          type="number"
          value={concurrency}
          onInput={setConcurrency}
          placeholder="no limit"
          {...FLOW_CONCURRENCY_BOUNDS}
          fault={fault("concurrency")}
        />
        <div class="form-row">
          <TextField
            label="Starts"
            type="number"
            value={count}
            onInput={setCount}
            placeholder="no limit"
            min={FLOW_RATE_BOUNDS.count.min}
            max={FLOW_RATE_BOUNDS.count.max}
            fault={fault("rate.count") ?? fault("rate")}
          />
          <TextField
            label="in so many seconds"
            type="number"
            value={perSeconds}
            onInput={setPerSeconds}
            min={FLOW_RATE_BOUNDS.perSeconds.min}
            max={FLOW_RATE_BOUNDS.perSeconds.max}
            fault={fault("rate.per_seconds")}
          />
        </div>
        <CheckField
          label="Pinned"
          isOn={isPinned}
          onChange={setIsPinned}
          hint="Jobs and schedules do not change its limits, and it is never forgotten."
        />
        <Trouble error={save.error} />
        <div>
          <button type="submit" class="button first" disabled={save.isBusy}>
            Save the limits
          </button>
        </div>
      </Form>
    </Card>
  );
}
