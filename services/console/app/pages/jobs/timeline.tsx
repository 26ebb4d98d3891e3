import type { ComponentChildren } from "preact";
import type { JobExplanation } from "../../../../../shared/client/jobs.ts";
import { hrefOf } from "../../data/place.ts";
import { Link, Time, type Tone, toneOf, wordsOf } from "../../ui/small.tsx";
import { countText, durationText } from "../../ui/time.ts";

/** The answer of `explain`: why a job waits, and what has happened to it. */

type Waiting = NonNullable<JobExplanation["waiting"]>;
type Entry = JobExplanation["timeline"][number];

/** A newer service may have further reasons. */
const TITLES: Record<string, string> = {
  hold: "Held by an operator",
  quota: "The month's runs are used up",
  no_worker: "Nobody of the service looks after it",
  due_time: "Waiting for its time",
  backoff: "Waiting for its next attempt",
  host: "Its host takes no more now",
  flow: "Its flow key's limit is reached",
  concurrency: "The project's limit is reached",
  turn: "Nothing is in its way",
};

/** The title of a reason to wait, also for counts of many jobs. */
export function reasonTitle(reason: string): string {
  return TITLES[reason] ?? wordsOf(reason);
}

export function WaitingNote({ waiting }: { waiting: Waiting }) {
  const isCalm = waiting.for === "due_time" || waiting.for === "backoff" || waiting.for === "turn";
  return (
    <section class={isCalm ? "waiting calm" : "waiting"} aria-label="Why it waits">
      <h2>{reasonTitle(waiting.for)}</h2>
      <p class="break">{waiting.message}</p>
      <p class="note">
        {"Since "}
        <Time at={waiting.since} />
        {waiting.until !== null && (
          <>
            {" · until "}
            <Time at={waiting.until} />
          </>
        )}
        {waiting.ahead !== null && waiting.ahead > 0 && ` · ${countText(waiting.ahead)} go before it`}
        {waiting.limit !== undefined &&
          ` · ${countText(waiting.in_use ?? 0)} of ${countText(waiting.limit)} in use`}
      </p>
    </section>
  );
}

export function Timeline({ explanation }: { explanation: JobExplanation }) {
  return (
    <ol class="timeline">
      {explanation.timeline.map((entry, index) => {
        const { tone, what } = describe(entry);
        return (
          <li key={index} class={tone}>
            <span class="when">
              <Time at={entry.at} />
            </span>
            <span class="what">{what}</span>
          </li>
        );
      })}
    </ol>
  );
}

function describe(entry: Entry): { tone: Tone; what: ComponentChildren } {
  switch (entry.event) {
    case "created":
      return { tone: "idle", what: "Created" };
    case "due":
      return { tone: "idle", what: `Attempt ${entry.attempt} due` };
    case "started":
      return {
        tone: "active",
        what: (
          <>
            {`Attempt ${entry.attempt} started`}
            <Muted>
              {entry.late_ms !== null && `${durationText(entry.late_ms)} after its due time`}
              {entry.held_for !== null && `, held back before: ${reasonTitle(entry.held_for).toLowerCase()}`}
            </Muted>
          </>
        ),
      };
    case "ended":
      return {
        tone: toneOf(entry.status),
        what: (
          <>
            {`Attempt ${entry.attempt} ${wordsOf(entry.status)}`}
            <Muted>
              {entry.response_status !== null && `HTTP ${entry.response_status} · `}
              {durationText(entry.duration_ms)}
            </Muted>
          </>
        ),
      };
    case "retry_planned":
      return {
        tone: "warn",
        what: (
          <>
            {`Attempt ${entry.attempt} due `}
            <Time at={entry.due_at} />
          </>
        ),
      };
    case "retry_requested":
      return { tone: "warn", what: `Attempt ${entry.attempt} asked for by hand` };
    case "cancel_requested":
      return { tone: "warn", what: "Cancel requested" };
    case "event_created":
      return {
        tone: "idle",
        what: (
          <>
            {"Event "}
            <code>{entry.type}</code>
          </>
        ),
      };
    case "event_delivered":
    case "event_failed":
      return {
        tone: entry.event === "event_delivered" ? "good" : "bad",
        what: (
          <>
            {entry.event === "event_delivered" ? "Event delivered to " : "Event not delivered to "}
            <Link href={hrefOf("webhooks", [entry.webhook_id])}>{entry.webhook_id}</Link>
            <Muted>{entry.response_status !== null && `HTTP ${entry.response_status}`}</Muted>
          </>
        ),
      };
  }
}

function Muted({ children }: { children: ComponentChildren }) {
  return <span class="muted">{[" ", children]}</span>;
}
