import { useState } from "preact/hooks";
import type { Job, JobExplanation } from "../../../../../shared/client/jobs.ts";
import type { Run } from "../../../../../shared/client/runs.ts";
import type { Schedule } from "../../../../../shared/client/schedules.ts";
import { useAction, usePost } from "../../data/action.ts";
import { hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, type Session, useSession } from "../../data/session.ts";
import { Confirm, tell } from "../../ui/dialog.tsx";
import { Json, memberText } from "../../ui/json.tsx";
import { Card, Live, NotYet, PageHead, ScopeNote, Trouble } from "../../ui/page.tsx";
import { Block, Copy, Id, Link, Status, Tags, Time } from "../../ui/small.tsx";
import { durationText } from "../../ui/time.ts";
import { Timeline, WaitingNote } from "./timeline.tsx";

/** One job: its status, why it waits, its history and its payload. */

interface Loaded {
  job: Job;
  /** As it was written. */
  payload: string;
  explanation: JobExplanation;
  /** The newest first. */
  runs: readonly Run[];
  hasMoreRuns: boolean;
}

const RUNS_SHOWN_MAX = 50;
const REQUESTS = 3;

async function load({ client }: Session, id: string, signal: AbortSignal): Promise<Loaded> {
  const [{ result: job, answer }, explanation, runs] = await Promise.all([
    client.jobs.get(id, { signal }).withAnswer(),
    client.jobs.explain(id, { signal }),
    client.runs.list({ job_id: id, limit: RUNS_SHOWN_MAX }, { signal }),
  ]);
  const payload = memberText(answer.text, "payload") ?? "{}";
  return { job, payload, explanation, runs: runs.data, hasMoreRuns: runs.next_cursor !== null };
}

export function JobPage({ id }: { id: string }) {
  const session = useSession();
  const [end, setEnd] = useState<{ attempts: number | null; at: number | null }>({
    attempts: null,
    at: null,
  });
  const [isComplete, setIsComplete] = useState(false);
  const query = useQuery(`job ${id}`, (signal) => load(session, id, signal), {
    requests: isComplete ? 0 : REQUESTS,
  });
  const { data, error, loadedAt } = query;
  // The runs and the timeline that were loaded together with the job's end may be from before it, so one more round is loaded.
  // A job that is retried by hand ends again. A canceled job is over while its attempt is still on the wire.
  const isOver = data !== undefined && ["succeeded", "failed", "canceled"].includes(data.job.status);
  const attempts = isOver ? data.job.attempts : null;
  const isNew = attempts !== end.attempts;
  if (isNew) setEnd({ attempts, at: loadedAt });
  const isRunning = data?.runs.some(({ status }) => status === "running");
  const complete = isOver && !isNew && end.at !== loadedAt && !isRunning;
  if (complete !== isComplete) setIsComplete(complete);
  const trail = { href: hrefOf("jobs"), label: "Jobs" };
  if (data === undefined) {
    return (
      <>
        <PageHead title="Job" trail={trail} />
        <NotYet query={query} what="the job" />
      </>
    );
  }
  const { job, payload, explanation, runs, hasMoreRuns } = data;
  return (
    <>
      <PageHead
        title={job.id}
        isCode
        trail={trail}
        beside={
          <>
            <Status status={job.status} />
            <Copy text={job.id} what={job.id} />
          </>
        }
        actions={<Actions session={session} job={job} runs={runs} reload={query.reload} />}
      />
      <div class="stack">
        <Trouble error={error} onRetry={query.reload} />
        {explanation.waiting !== null && <WaitingNote waiting={explanation.waiting} />}
        <div class="main-and-side">
          <div class="stack">
            <Card title="Timeline" head={<Live {...query} />}>
              <Timeline explanation={explanation} />
            </Card>
            <Card title="Attempts">
              {runs.length === 0 ? (
                <p class="note">
                  No attempt is recorded: none has begun, or they are older than the plan keeps runs.
                </p>
              ) : (
                runs.map((run) => <Attempt key={run.id} run={run} />)
              )}
              {hasMoreRuns && (
                <p class="note">
                  {`These are the latest ${RUNS_SHOWN_MAX}. `}
                  <Link href={hrefOf("runs", [], { job_id: job.id })}>All attempts of this job</Link>
                </p>
              )}
            </Card>
            <Card title="Payload">
              <Json text={payload} what="the payload" />
            </Card>
          </div>
          <Facts job={job} />
        </div>
      </div>
    </>
  );
}

function Facts({ job }: { job: Job }) {
  return (
    <Card title="Facts">
      <dl class="facts">
        <dt>Target</dt>
        <dd>{job.target_url}</dd>
        <dt>Due</dt>
        <dd>
          <Time at={job.run_at} />
        </dd>
        <dt>Created</dt>
        <dd>
          <Time at={job.created_at} />
        </dd>
        <dt>Region</dt>
        <dd>{job.region}</dd>
        <dt>Attempts</dt>
        <dd class="number">{`${job.attempts} of ${job.retry_policy.max_attempts}`}</dd>
        <JobFacts of={job} />
      </dl>
    </Card>
  );
}

/** The facts that a job and a schedule have in common. */
export function JobFacts({ of: { retry_policy: policy, flow, tags } }: { of: Job | Schedule }) {
  return (
    <>
      <dt>Backoff</dt>
      <dd class="number">{`from ${policy.base_seconds} s, at most ${policy.cap_seconds} s`}</dd>
      {flow !== undefined && (
        <>
          <dt>Flow key</dt>
          <dd>
            <Link href={hrefOf("flows", [flow.key])}>{flow.key}</Link>
            {flow.hold === "job" && ", held until the job is over"}
          </dd>
        </>
      )}
      <dt>Tags</dt>
      <dd>
        {tags === undefined ? (
          <span class="muted">none</span>
        ) : (
          <Tags tags={tags} hrefOf={(tag) => hrefOf("jobs", [], { tag })} />
        )}
      </dd>
    </>
  );
}

function Attempt({ run }: { run: Run }) {
  return (
    <div class="attempt">
      <div class="attempt-head">
        <strong class="number">{`Attempt ${run.attempt}`}</strong>
        <Status status={run.status} />
        <span class="muted number">
          {[
            run.response_status !== null && `HTTP ${run.response_status}`,
            run.duration_ms !== null && durationText(run.duration_ms),
          ]
            .filter(Boolean)
            .join(" · ")}
        </span>
        <span class="muted">
          <Time at={run.started_at} />
        </span>
      </div>
      {run.error !== null && <Block what={`the error of attempt ${run.attempt}`}>{run.error}</Block>}
      <div class="note">
        <Id id={run.id} />
        {run.next_retry_at !== null && (
          <>
            {" · next attempt due "}
            <Time at={run.next_retry_at} />
          </>
        )}
      </div>
    </div>
  );
}

/** The actions that the job's status allows. */
function Actions(props: { session: Session; job: Job; runs: readonly Run[]; reload: () => void }) {
  const { session, job, runs, reload } = props;
  const { client } = session;
  const [isAsking, setIsAsking] = useState(false);
  const cancel = useAction(async () => {
    await client.jobs.cancel(job.id);
    setIsAsking(false);
    tell("The job is canceled.");
    reload();
  });
  const [last] = runs;
  const canRetry = job.status === "failed" && (last?.status === "failed" || last?.status === "timed_out");
  const retry = usePost(async (options) => {
    if (last === undefined) return;
    await client.runs.retry(last.id, options);
    tell("One more attempt has begun.");
    reload();
  });
  if (!may(session, "jobs", "write"))
    return <ScopeNote session={session} what="cancel, retry or create jobs" />;
  return (
    <>
      {canRetry && (
        <button type="button" class="button first" disabled={retry.isBusy} onClick={() => retry.run()}>
          Retry
        </button>
      )}
      <Link class="button" href={hrefOf("jobs", ["new"], { from: job.id })}>
        Duplicate
      </Link>
      {(job.status === "queued" || job.status === "running") && (
        <button type="button" class="button" onClick={() => setIsAsking(true)}>
          Cancel
        </button>
      )}
      <Trouble error={retry.error} />
      {isAsking && (
        <Confirm
          title="Cancel this job?"
          verb="Cancel the job"
          isDanger
          action={cancel}
          onClose={() => {
            cancel.clear();
            setIsAsking(false);
          }}
        >
          <p class="break">
            {job.status === "running"
              ? "The attempt that is in progress runs to its end. Nothing follows it."
              : "It will not be sent to "}
            {job.status === "queued" && <strong>{job.target_url}</strong>}
            {job.status === "queued" && "."} A canceled job does not come back.
          </p>
        </Confirm>
      )}
    </>
  );
}
