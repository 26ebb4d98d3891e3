import { useState } from "preact/hooks";
import type { Schedule } from "../../../../../shared/client/schedules.ts";
import { useAction, usePost } from "../../data/action.ts";
import { goTo, hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, type Session, useSession } from "../../data/session.ts";
import { Confirm, tell } from "../../ui/dialog.tsx";
import { Json, memberText } from "../../ui/json.tsx";
import { Card, Live, NotYet, PageHead, ScopeNote, Trouble } from "../../ui/page.tsx";
import { Id, Link, Status, Time } from "../../ui/small.tsx";
import { JobFacts } from "../jobs/job.tsx";
import { Backfill } from "./backfill.tsx";
import { Calendar } from "./calendar.tsx";
import { NextFirings } from "./firings.tsx";
import { Ledger } from "./ledger.tsx";
import { statusOf } from "./list.tsx";

/** One schedule: when it fires next, what became of its instants, what its jobs carry. */

const REQUESTS = 1;

export function SchedulePage({ id }: { id: string }) {
  const session = useSession();
  const query = useQuery(
    `schedule ${id}`,
    async (signal) => {
      const { result, answer } = await session.client.schedules.get(id, { signal }).withAnswer();
      return { schedule: result, payload: memberText(answer.text, "payload") ?? "{}" };
    },
    { requests: REQUESTS },
  );
  const { data, error } = query;
  const trail = { href: hrefOf("schedules"), label: "Schedules" };
  if (data === undefined) {
    return (
      <>
        <PageHead title="Schedule" trail={trail} />
        <NotYet query={query} what="the schedule" />
      </>
    );
  }
  const { schedule, payload } = data;
  const timetable = { cron: schedule.cron, timezone: schedule.timezone };
  return (
    <>
      <PageHead
        title={schedule.name}
        trail={trail}
        beside={<Status status={statusOf(schedule.paused)} />}
        actions={<Actions session={session} schedule={schedule} reload={query.reload} />}
      />
      <div class="stack">
        <Trouble error={error} onRetry={query.reload} />
        <div class="main-and-side">
          <div class="stack">
            <Card title="Calendar" head={<Live {...query} />}>
              <Calendar timetable={timetable} />
            </Card>
            <Card title={schedule.paused ? "When it would fire next" : "Next firings"}>
              <NextFirings timetable={timetable} />
            </Card>
          </div>
          <Facts schedule={schedule} />
        </div>
        <section class="stack-close" aria-label="Ledger">
          <h2>Ledger</h2>
          <p class="note">What became of each instant, as far back as the plan keeps runs.</p>
          <Ledger schedule={schedule} />
        </section>
        <Card title="Payload">
          <Json text={payload} what="the payload" />
        </Card>
      </div>
    </>
  );
}

function Facts({ schedule }: { schedule: Schedule }) {
  return (
    <Card title="Facts">
      <dl class="facts">
        <dt>Cron</dt>
        <dd>
          <code>{schedule.cron}</code>
        </dd>
        <dt>Time zone</dt>
        <dd>{schedule.timezone}</dd>
        <dt>Next</dt>
        <dd>
          <Time at={schedule.next_run_at} otherwise="none while paused" />
        </dd>
        <dt>Target</dt>
        <dd>{schedule.target_url}</dd>
        <dt>Overlap</dt>
        <dd>{schedule.overlap ?? "allow"}</dd>
        {schedule.spread_seconds !== undefined && (
          <>
            <dt>Spread</dt>
            <dd class="number">{`up to ${schedule.spread_seconds} s`}</dd>
          </>
        )}
        <dt>Attempts</dt>
        <dd class="number">{`at most ${schedule.retry_policy.max_attempts}`}</dd>
        <JobFacts of={schedule} />
        <dt>Created</dt>
        <dd>
          <Time at={schedule.created_at} />
        </dd>
        <dt>Id</dt>
        <dd>
          <Id id={schedule.id} />
        </dd>
      </dl>
      <p class="note">
        <Link href={hrefOf("jobs", [], { schedule_id: schedule.id })}>Its jobs</Link>
      </p>
    </Card>
  );
}

function Actions({
  session,
  schedule,
  reload,
}: {
  session: Session;
  schedule: Schedule;
  reload: () => void;
}) {
  const { schedules } = session.client;
  const [asked, setAsked] = useState<"delete" | "backfill" | null>(null);
  const close = () => setAsked(null);
  const toggle = useAction(async () => {
    await (schedule.paused ? schedules.resume(schedule.id) : schedules.pause(schedule.id));
    tell(schedule.paused ? "The schedule is active again." : "The schedule is paused.");
    reload();
  });
  const run = usePost(async (options) => {
    const job = await schedules.run(schedule.id, options);
    tell("One job is created.");
    goTo(hrefOf("jobs", [job.id]));
  });
  const remove = useAction(async () => {
    await schedules.delete(schedule.id);
    tell("The schedule is deleted.");
    goTo(hrefOf("schedules"));
  });
  if (!may(session, "schedules", "write")) return <ScopeNote session={session} what="change schedules" />;
  return (
    <>
      <button type="button" class="button" disabled={run.isBusy} onClick={() => run.run()}>
        Run now
      </button>
      <button type="button" class="button" disabled={toggle.isBusy} onClick={() => toggle.run()}>
        {schedule.paused ? "Resume" : "Pause"}
      </button>
      <Link class="button" href={hrefOf("schedules", [schedule.id, "edit"])}>
        Edit
      </Link>
      <button type="button" class="button" onClick={() => setAsked("backfill")}>
        Backfill
      </button>
      <button type="button" class="button" onClick={() => setAsked("delete")}>
        Delete
      </button>
      <Trouble error={run.error ?? toggle.error} />
      {asked === "backfill" && <Backfill schedule={schedule} onClose={close} />}
      {asked === "delete" && (
        <Confirm
          title="Delete this schedule?"
          verb="Delete the schedule"
          isDanger
          action={remove}
          onClose={close}
        >
          <p class="break">
            <strong>{schedule.name}</strong> never fires again. Its jobs stay, and its name is free at once.
          </p>
        </Confirm>
      )}
    </>
  );
}
