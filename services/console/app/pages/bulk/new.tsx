import { useState } from "preact/hooks";
import type { Bulk, NewBulk } from "../../../../../shared/client/bulk.ts";
import { BULK_ACTIONS, type BulkAction, PER_SECOND_BOUNDS } from "../../../../../shared/domain/bulk.ts";
import { REGIONS } from "../../../../../shared/domain/scope.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf, place } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { Confirm, tell } from "../../ui/dialog.tsx";
import { CheckField, Form, optionsOf, SelectField, TextField } from "../../ui/form.tsx";
import { Card, FormPage, NotYet, Trouble } from "../../ui/page.tsx";
import { Link } from "../../ui/small.tsx";
import { countText } from "../../ui/time.ts";
import { type FilterTexts, filterOf, filterText, MEMBERS } from "./filter.ts";
import { Sample } from "./operation.tsx";

/** `bulk/new`. The filter may stand in the address. The operation is counted, then started. */
export function NewBulkPage() {
  return (
    <FormPage
      title="New bulk operation"
      trail={{ href: hrefOf("bulk"), label: "Bulk operations" }}
      about="Count first: a dry run shows how many it would take, and some of them."
      resource="bulk"
      what="start bulk operations"
    >
      <BulkForm />
    </FormPage>
  );
}

function BulkForm() {
  const { client } = useSession();
  const { query } = place.value;
  const [action, setAction] = useState<BulkAction>(
    () => BULK_ACTIONS.find((name) => name === query.get("action")) ?? "retry",
  );
  const [texts, setTexts] = useState<FilterTexts>(() => {
    return Object.fromEntries(
      ALL_MEMBERS.map((name) => [name, query.get(name) ?? ""]),
    ) as unknown as FilterTexts;
  });
  const [isAll, setIsAll] = useState(false);
  const [perSecond, setPerSecond] = useState("");
  const [isAsking, setIsAsking] = useState(false);
  const [counting, setCounting] = useState<{ wish: string; id: string } | null>(null);
  const filter = filterOf(action, texts, isAll && action !== "backfill");
  const wish: NewBulk = { action, filter, ...(perSecond && { per_second: Number(perSecond) }) };
  const wishText = JSON.stringify({ action, filter });
  const count = usePost(async (options) => {
    const { id } = await client.bulk.create({ ...wish, dry_run: true }, options);
    setCounting({ wish: wishText, id });
  }, wish);
  const start = usePost(async (options) => {
    const { id } = await client.bulk.create(wish, options);
    tell("The operation has begun.");
    goTo(hrefOf("bulk", [id]));
  }, wish);
  const error = start.error ?? count.error;
  const fault = (member: string) => faultOf(error, `filter.${member}`);
  const field = (name: keyof FilterTexts) => ({
    label: LABELS[name],
    value: texts[name],
    onInput: (value: string) => setTexts((before) => ({ ...before, [name]: value })),
    fault: fault(name),
  });
  const has = (name: keyof FilterTexts) =>
    MEMBERS[action].includes(name) && (!isAll || action === "backfill");
  return (
    <div class="main-and-side">
      <Card>
        <Form label="Bulk operation" onSubmit={() => count.run()}>
          <SelectField
            label="Action"
            value={action}
            onChange={(value) => {
              setAction(value as BulkAction);
              setTexts((before) => ({ ...before, status: "" }));
            }}
            options={optionsOf(BULK_ACTIONS)}
            hint={HINTS[action]}
          />
          {action !== "backfill" && (
            <CheckField label="Everything that the action takes" isOn={isAll} onChange={setIsAll} />
          )}
          <div class="form-row">
            {has("status") && (
              <SelectField
                label="Status"
                value={texts.status}
                onChange={(status) => setTexts((before) => ({ ...before, status }))}
                options={optionsOf(action === "cancel" ? ["queued", "running"] : ["failed"], "any")}
                fault={fault("status")}
              />
            )}
            {has("region") && (
              <SelectField
                label="Region"
                value={texts.region}
                onChange={(region) => setTexts((before) => ({ ...before, region }))}
                options={optionsOf(REGIONS, "any")}
                fault={fault("region")}
              />
            )}
            {has("tag") && <TextField {...field("tag")} placeholder="invoices" />}
            {has("schedule_id") && <TextField {...field("schedule_id")} placeholder="sch_…" />}
            {has("target_host") && <TextField {...field("target_host")} placeholder="api.example.com" />}
            {has("created_after") && <TextField {...field("created_after")} type="datetime-local" />}
            {has("created_before") && <TextField {...field("created_before")} type="datetime-local" />}
            {has("error_contains") && (
              <TextField {...field("error_contains")} placeholder="connection refused" />
            )}
            {has("response_status") && (
              <TextField {...field("response_status")} type="number" placeholder="503" />
            )}
            {has("from") && <TextField {...field("from")} type="datetime-local" />}
            {has("to") && <TextField {...field("to")} type="datetime-local" />}
          </div>
          <TextField
            label="Members a second, at most"
            type="number"
            value={perSecond}
            onInput={setPerSecond}
            placeholder={String(PER_SECOND_BOUNDS.default)}
            min={PER_SECOND_BOUNDS.min}
            max={PER_SECOND_BOUNDS.max}
            fault={faultOf(error, "per_second")}
          />
          <Trouble error={error} />
          <div class="buttons">
            <button type="submit" class="button first" disabled={count.isBusy}>
              Count first
            </button>
            <button type="button" class="button" onClick={() => setIsAsking(true)}>
              Start
            </button>
            <Link class="button" href={hrefOf("bulk")}>
              Back
            </Link>
          </div>
          {isAsking && (
            <Confirm
              title={`Start: ${action}?`}
              verb="Start"
              isDanger={action === "cancel"}
              action={start}
              onClose={() => setIsAsking(false)}
            >
              <p class="break">{`It takes ${filterText(filter) || "what the API says of an empty filter"}.`}</p>
            </Confirm>
          )}
        </Form>
      </Card>
      <Card title="Dry run">
        {counting === null ? (
          <p class="note">Nothing is counted yet.</p>
        ) : (
          <Count id={counting.id} isOld={counting.wish !== wishText} />
        )}
      </Card>
    </div>
  );
}

/** Counting takes moments, so this asks until it is over. */
function Count({ id, isOld }: { id: string; isOld: boolean }) {
  const { client } = useSession();
  const query = useQuery(`count ${id}`, async (signal) => {
    for (;;) {
      const bulk: Bulk = await client.bulk.get(id, { signal });
      if (bulk.status !== "counting") return bulk;
      await new Promise((resolve) => setTimeout(resolve, COUNT_MS));
      signal.throwIfAborted();
    }
  });
  const { data } = query;
  if (data === undefined) return <NotYet query={query} what="the count" />;
  return (
    <div class="stack-close" role="status">
      <p>
        <strong>{data.matched === null ? "Nothing" : countText(data.matched)}</strong> would be taken.
      </p>
      {isOld && <p class="note">The filter was changed since: count again.</p>}
      <Sample bulk={data} />
      <p class="note">
        <Link href={hrefOf("bulk", [id])}>This dry run</Link>
      </p>
    </div>
  );
}

const COUNT_MS = 1_000;

const HINTS: Record<BulkAction, string> = {
  cancel: "Jobs that are not over.",
  retry: "One more attempt for each job that failed.",
  backfill: "One job for each instant of a schedule that did not fire.",
};

const LABELS: Record<keyof FilterTexts, string> = {
  status: "Status",
  region: "Region",
  tag: "Tag",
  schedule_id: "Schedule",
  target_host: "Target host",
  created_after: "Created after",
  created_before: "Created before",
  error_contains: "Error contains",
  response_status: "Response status",
  from: "From",
  to: "To",
};
const ALL_MEMBERS = Object.keys(LABELS) as (keyof FilterTexts)[];
