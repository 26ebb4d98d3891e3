import { useEffect, useState } from "preact/hooks";
import type { Schedule, SchedulePreview } from "../../../../../shared/client/schedules.ts";
import { OVERLAPS, SPREAD_SECONDS_MAX } from "../../../../../shared/domain/schedule.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { Form, FormFoot, optionsOf, SelectField, TextField } from "../../ui/form.tsx";
import { memberText } from "../../ui/json.tsx";
import { Card, errorText, FormPage, NotYet } from "../../ui/page.tsx";
import { durationText } from "../../ui/time.ts";
import { JobFields } from "../jobs/fields.tsx";
import { FiringList } from "./firings.tsx";
import { changesOf, creationOf, NEW_SCHEDULE, type ScheduleTexts, textsOf } from "./texts.ts";

/** Creates a schedule, or changes one. Its next firings are shown while one types. */
export function ScheduleFormPage({ id }: { id: string | null }) {
  const { client } = useSession();
  const query = useQuery(`schedule form ${id}`, async (signal) => {
    if (id === null) return { schedule: null, texts: NEW_SCHEDULE };
    const { result, answer } = await client.schedules.get(id, { signal }).withAnswer();
    return { schedule: result, texts: textsOf(result, memberText(answer.text, "payload") ?? "{}") };
  });
  const trail =
    id === null
      ? { href: hrefOf("schedules"), label: "Schedules" }
      : { href: hrefOf("schedules", [id]), label: "Schedule" };
  return (
    <FormPage
      title={id === null ? "Create a schedule" : `Edit ${query.data?.schedule?.name ?? "the schedule"}`}
      trail={trail}
      resource="schedules"
      what="change schedules"
    >
      {query.data === undefined ? (
        <NotYet query={query} what="the schedule" />
      ) : (
        <ScheduleForm {...query.data} back={trail.href} />
      )}
    </FormPage>
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
  return (
    <div class="main-and-side">
      <Card>
        <Form label={schedule === null ? "Create a schedule" : "Edit the schedule"} onSubmit={save.run}>
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
          <JobFields texts={texts} set={set} error={save.error}>
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
          </JobFields>
          <FormFoot verb={schedule === null ? "Create the schedule" : "Save"} action={save} back={back} />
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

/** The firings of the typed timetable, once the typing pauses. */
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
