import { useEffect, useState } from "preact/hooks";
import type { Schedule, SchedulePreview } from "../../../../../shared/client/schedules.ts";
import { OVERLAPS, SPREAD_SECONDS_MAX } from "../../../../../shared/domain/schedule.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, useSession } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { AreaField, Form, optionsOf, SelectField, TextField } from "../../ui/form.tsx";
import { memberText } from "../../ui/json.tsx";
import { Card, Empty, errorText, Loading, PageHead, ScopeNote, Trouble } from "../../ui/page.tsx";
import { RetryFields } from "../../ui/retry-fields.tsx";
import { Link } from "../../ui/small.tsx";
import { durationText } from "../../ui/time.ts";
import { FlowFields } from "../flows/fields.tsx";
import { FiringList } from "./firings.tsx";
import { changesOf, creationOf, NEW_SCHEDULE, type ScheduleTexts, textsOf } from "./texts.ts";

/** Creates a schedule, or changes one. When it would fire is shown while one types. */
export function ScheduleFormPage({ id }: { id: string | null }) {
  const session = useSession();
  const query = useQuery(`schedule form ${id}`, async (signal) => {
    if (id === null) return { schedule: null, texts: NEW_SCHEDULE };
    const { result, answer } = await session.client.schedules.get(id, { signal }).withAnswer();
    return { schedule: result, texts: textsOf(result, memberText(answer.text, "payload") ?? "{}") };
  });
  const title = id === null ? "Create a schedule" : `Edit ${query.data?.schedule?.name ?? "the schedule"}`;
  const back = id === null ? hrefOf("schedules") : hrefOf("schedules", [id]);
  const head = (
    <PageHead title={title} trail={{ href: back, label: id === null ? "Schedules" : "Schedule" }} />
  );
  if (!may(session, "schedules", "write")) {
    return (
      <>
        {head}
        <Empty title="Not with this key">
          <ScopeNote session={session} what="change schedules" />
        </Empty>
      </>
    );
  }
  return (
    <>
      {head}
      {query.data !== undefined ? (
        <ScheduleForm {...query.data} back={back} />
      ) : query.error !== undefined ? (
        <Trouble error={query.error} onRetry={query.reload} />
      ) : (
        <Loading what="the schedule" />
      )}
    </>
  );
}

function ScheduleForm({
  schedule,
  texts: given,
  back,
}: {
  schedule: Schedule | null;
  texts: ScheduleTexts;
  back: string;
}) {
  const { schedules } = useSession().client;
  const [texts, setTexts] = useState(given);
  const set = (name: keyof ScheduleTexts) => (value: string) =>
    setTexts((before) => ({ ...before, [name]: value }));
  const preview = usePreview(texts);
  const save = usePost(async (options) => {
    const saved =
      schedule === null
        ? await schedules.create(creationOf(texts), options)
        : await schedules.update(schedule.id, changesOf(given, texts));
    tell(schedule === null ? "The schedule is created." : "The schedule is changed.");
    goTo(hrefOf("schedules", [saved.id]));
  }, texts);
  const fault = (param: string) => faultOf(save.error, param) ?? faultOf(preview.error, param);
  const isJsonFault = save.error instanceof SyntaxError;
  return (
    <div class="main-and-side">
      <Card>
        <Form
          label={schedule === null ? "Create a schedule" : "Edit the schedule"}
          onSubmit={() => save.run()}
        >
          <TextField label="Name" value={texts.name} onInput={set("name")} fault={fault("name")} hasFocus />
          <div class="form-row">
            <TextField
              label="Cron"
              value={texts.cron}
              onInput={set("cron")}
              placeholder="30 2 * * *"
              isMono
              hint="Minute, hour, day, month, weekday; six fields begin with seconds. Also @daily."
              fault={fault("cron")}
            />
            <TextField
              label="Time zone"
              value={texts.timezone}
              onInput={set("timezone")}
              placeholder="UTC"
              list={ZONES}
              fault={fault("timezone")}
            />
          </div>
          <TextField
            label="Target URL"
            type="url"
            value={texts.targetUrl}
            onInput={set("targetUrl")}
            placeholder="https://example.com/hook"
            isMono
            fault={fault("target_url")}
          />
          <AreaField
            label="Payload"
            value={texts.payload}
            onInput={set("payload")}
            hint="A JSON object, which each job carries."
            fault={
              isJsonFault ? `This is no JSON object: ${(save.error as Error).message}` : fault("payload")
            }
          />
          <div class="form-row">
            <SelectField
              label="If a job of it is not over"
              value={texts.overlap}
              onChange={set("overlap")}
              options={optionsOf(OVERLAPS, "allow (default)")}
              fault={fault("overlap")}
            />
            <TextField
              label="Spread, in seconds"
              type="number"
              value={texts.spreadSeconds}
              onInput={set("spreadSeconds")}
              placeholder="0"
              min={0}
              max={SPREAD_SECONDS_MAX}
              fault={fault("spread_seconds")}
            />
            <TextField
              label="Tags"
              value={texts.tags}
              onInput={set("tags")}
              placeholder="nightly invoices"
              fault={fault("tags")}
            />
          </div>
          <RetryFields texts={texts} set={set} fault={fault} />
          <FlowFields texts={texts} set={set} fault={fault} />
          {!isJsonFault && <Trouble error={save.error} />}
          <div class="buttons">
            <button type="submit" class="button first" disabled={save.isBusy}>
              {schedule === null ? "Create the schedule" : "Save"}
            </button>
            <Link class="button" href={back}>
              Back
            </Link>
          </div>
        </Form>
      </Card>
      <Card title="When it would fire">
        <Preview preview={preview} />
      </Card>
    </div>
  );
}

function Preview({
  preview: { data, error },
}: {
  preview: { data: SchedulePreview | undefined; error: unknown };
}) {
  if (error !== undefined) return <p class="note break">{errorText(error)}</p>;
  if (data === undefined) return <p class="note">Type a cron expression to see its next firings.</p>;
  const { plan, min_gap_seconds: gap } = data;
  return (
    <div class="stack-close" role="status">
      <FiringList preview={data} />
      <p class="note">{`The smallest gap between two firings is ${durationText(gap * 1_000)}.`}</p>
      {!plan.allowed && (
        <p class="note">{`The plan's ${plan.limit} active schedules are used up: one more would be refused.`}</p>
      )}
    </div>
  );
}

const TYPING_MS = 350;

/** The firings of what is typed, once the typing pauses. */
function usePreview(texts: ScheduleTexts): { data: SchedulePreview | undefined; error: unknown } {
  const { client } = useSession();
  const [typed, setTyped] = useState(texts);
  useEffect(() => {
    const timer = setTimeout(() => setTyped(texts), TYPING_MS);
    return () => clearTimeout(timer);
  }, [texts]);
  const { cron, timezone, spreadSeconds } = typed;
  return useQuery(`preview ${JSON.stringify([cron, timezone, spreadSeconds])}`, async (signal) => {
    if (cron.trim() === "") return undefined;
    const spread = spreadSeconds === "" ? {} : { spread_seconds: Number(spreadSeconds) };
    return client.schedules.preview({ cron, timezone: timezone.trim() || "UTC", ...spread }, { signal });
  });
}

/** The browser's own list: the service may know more. */
const ZONES = ["UTC", ...Intl.supportedValuesOf("timeZone")];
