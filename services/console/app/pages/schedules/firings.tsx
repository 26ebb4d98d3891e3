import type { SchedulePreview } from "../../../../../shared/client/schedules.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { NotYet } from "../../ui/page.tsx";
import { now, relativeText, utcText } from "../../ui/time.ts";
import type { Timetable } from "./calendar.tsx";

/** The next firings on the schedule's own wall clock, in UTC, and from now. */

const FIRINGS_SHOWN = 8;

export function NextFirings({ timetable: { cron, timezone } }: { timetable: Timetable }) {
  const { client } = useSession();
  const query = useQuery(
    `next ${cron} ${timezone}`,
    (signal) => client.schedules.preview({ cron, timezone, count: FIRINGS_SHOWN }, { signal }),
    { requests: 2 },
  );
  const { data } = query;
  return data === undefined ? (
    <NotYet query={query} what="the next firings" />
  ) : (
    <FiringList preview={data} />
  );
}

export function FiringList({ preview: { firings } }: { preview: SchedulePreview }) {
  if (firings.length === 0) return <p class="note">It never fires again.</p>;
  return (
    <ol class="firings" aria-label="Next firings">
      {firings.map(({ at, local_time, moved_dst }) => (
        <li key={at} class="number">
          <span>
            {localTimeText(local_time)}{" "}
            {moved_dst && <span class="badge warn">moved by the clock change</span>}
          </span>
          <span class="muted">{utcText(new Date(at))}</span>
          <span class="muted">{relativeText(new Date(at), now.value)}</span>
        </li>
      ))}
    </ol>
  );
}

/** Such as `2026-03-29 03:30:00 +02:00`. */
export function localTimeText(localTime: string): string {
  return localTime.replace("T", " ").replace(/(?=[+-]\d\d:\d\d$|Z$)/, " ");
}
