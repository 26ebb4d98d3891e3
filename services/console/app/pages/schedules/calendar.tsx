import { useState } from "preact/hooks";
import type { SchedulePreview } from "../../../../../shared/client/schedules.ts";
import { PREVIEW_FIRINGS_MAX } from "../../../../../shared/domain/schedule.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { Loading, Trouble } from "../../ui/page.tsx";
import { countText } from "../../ui/time.ts";
import { type ClockChange, dayIn, findClockChanges } from "./clock-changes.ts";

/** Four weeks of a timetable, a cell a day on its own wall clock. Days on which the clocks change are marked. */

export interface Timetable {
  cron: string;
  timezone: string;
}

const DAY_MS = 86_400_000;
const DAYS_SHOWN = 28;

export function Calendar({ timetable }: { timetable: Timetable }) {
  const { client } = useSession();
  const { cron, timezone } = timetable;
  const [today] = useState(() => Math.floor(Date.now() / DAY_MS) * DAY_MS);
  const [from, setFrom] = useState(today);
  const query = useQuery(`calendar ${cron} ${timezone} ${from}`, (signal) =>
    client.schedules.preview(
      { cron, timezone, from: new Date(from - 1), count: PREVIEW_FIRINGS_MAX },
      { signal },
    ),
  );
  const [changes] = useState(() => findClockChanges(timezone, today));
  const { data, error } = query;
  return (
    <div class="stack-close">
      <Trouble error={error} onRetry={query.reload} />
      {data === undefined ? (
        error === undefined && <Loading what="the calendar" />
      ) : (
        <Days preview={data} from={from} changes={changes} />
      )}
      <div class="buttons">
        <button
          type="button"
          class="button compact"
          disabled={from <= today}
          onClick={() => setFrom(from - DAYS_SHOWN * DAY_MS)}
        >
          Four weeks back
        </button>
        <button type="button" class="button compact" onClick={() => setFrom(from + DAYS_SHOWN * DAY_MS)}>
          Four weeks on
        </button>
        {changes.map((change) => (
          <button
            key={change.at}
            type="button"
            class="button compact"
            onClick={() => setFrom(Math.max(today, Math.floor(change.at / DAY_MS) * DAY_MS - 7 * DAY_MS))}
          >
            {`Clocks ${hoursText(change)} on ${dayIn(timezone, change.at)}`}
          </button>
        ))}
      </div>
    </div>
  );
}

function Days({
  preview,
  from,
  changes,
}: {
  preview: SchedulePreview;
  from: number;
  changes: readonly ClockChange[];
}) {
  const { firings, timezone } = preview;
  const byDay = Map.groupBy(firings, ({ local_time }) => local_time.slice(0, 10));
  const changeOf = new Map(changes.map((change) => [dayIn(timezone, change.at), change]));
  // If there are more firings than a preview holds, its last day is not whole.
  const lastDay =
    firings.length === PREVIEW_FIRINGS_MAX ? firings.at(-1)?.local_time.slice(0, 10) : undefined;
  const today = dayIn(timezone, Date.now());
  const days = Array.from({ length: DAYS_SHOWN }, (_, index) =>
    dayIn(timezone, from + (index + 0.5) * DAY_MS),
  );
  return (
    <ol class="calendar">
      {days.map((day) => {
        const change = changeOf.get(day);
        const isKnown = lastDay === undefined || day < lastDay;
        const found = byDay.get(day) ?? [];
        const isMoved = found.some((firing) => firing.moved_dst);
        return (
          <li
            key={day}
            class={
              [found.length > 0 && "fires", change && "changes", day === today && "today"]
                .filter(Boolean)
                .join(" ") || undefined
            }
            title={`${day}: ${isKnown ? `${found.length} firings` : "more than the preview holds"}`}
          >
            <span class="day">{dayText(day)}</span>
            <span class="number">
              {isKnown ? firingsText(found.map(({ local_time }) => local_time.slice(11, 16))) : "…"}
            </span>
            {change && <span class="change">{`clocks ${hoursText(change)}`}</span>}
            {isMoved && <span class="change">moved</span>}
          </li>
        );
      })}
    </ol>
  );
}

/** Up to two times, or how many there are. */
function firingsText(times: readonly string[]): string {
  if (times.length === 0) return "–";
  return times.length <= 2 ? times.join(", ") : `${countText(times.length)} ×`;
}

function dayText(day: string): string {
  const weekday = new Intl.DateTimeFormat("en", { weekday: "short", timeZone: "UTC" }).format(
    Date.parse(day),
  );
  return `${weekday} ${day.slice(5)}`;
}

function hoursText({ minutes }: ClockChange): string {
  const hours = Math.abs(minutes) / 60;
  return `${minutes > 0 ? "+" : "−"}${hours} h`;
}
