import { useState } from "preact/hooks";
import type { Bulk } from "../../../../../shared/client/bulk.ts";
import { usePost } from "../../data/action.ts";
import { hrefOf } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, useSession } from "../../data/session.ts";
import { Confirm, tell } from "../../ui/dialog.tsx";
import { Card, Live, Meter, NotYet, PageHead, Stat, Trouble } from "../../ui/page.tsx";
import { Id, Link, Status, Time } from "../../ui/small.tsx";
import { countText, percentText } from "../../ui/time.ts";
import { filterText } from "./filter.ts";

/** One bulk operation and how far it is. */
export function BulkPage({ id }: { id: string }) {
  const session = useSession();
  const [isOver, setIsOver] = useState(false);
  const query = useQuery(`bulk ${id}`, (signal) => session.client.bulk.get(id, { signal }), {
    requests: isOver ? 0 : 1,
  });
  const { data: bulk, error } = query;
  const over = bulk !== undefined && bulk.ended_at !== null;
  if (over !== isOver) setIsOver(over);
  const [isAsking, setIsAsking] = useState(false);
  const abort = usePost(async (options) => {
    await session.client.bulk.abort(id, options);
    setIsAsking(false);
    tell("The operation is aborted.");
    query.reload();
  });
  const trail = { href: hrefOf("bulk"), label: "Bulk operations" };
  if (bulk === undefined) {
    return (
      <>
        <PageHead title="Bulk operation" trail={trail} />
        <NotYet query={query} what="the operation" />
      </>
    );
  }
  const title = bulk.dry_run ? `Dry run of ${bulk.action}` : `Bulk ${bulk.action}`;
  const canAbort = !over && may(session, "bulk", "write");
  return (
    <>
      <PageHead
        title={title}
        trail={trail}
        beside={<Status status={bulk.status} />}
        actions={
          <>
            <Live {...query} />
            {canAbort && (
              <button type="button" class="button" onClick={() => setIsAsking(true)}>
                Abort
              </button>
            )}
          </>
        }
      />
      <div class="stack">
        <Trouble error={error} onRetry={query.reload} />
        <div class="main-and-side">
          <div class="stack">
            <Progress bulk={bulk} />
            <Card title="Sample">
              <Sample bulk={bulk} />
            </Card>
          </div>
          <Facts bulk={bulk} />
        </div>
      </div>
      {isAsking && (
        <Confirm
          title="Abort this operation?"
          verb="Abort it"
          isDanger
          action={abort}
          onClose={() => setIsAsking(false)}
        >
          <p>What is done stays done. Nothing more is begun.</p>
        </Confirm>
      )}
    </>
  );
}

function Progress({ bulk }: { bulk: Bulk }) {
  const { matched, done, skipped, failed } = bulk;
  const judged = done + skipped + failed;
  return (
    <Card title="Progress">
      <dl class="stats">
        <Stat name="Matched" note={matched === null ? "still counting" : "when it was created"}>
          {matched === null ? "–" : countText(matched)}
        </Stat>
        <Stat name="Done">{countText(done)}</Stat>
        <Stat name="Skipped" note="nothing to be done any more">
          {countText(skipped)}
        </Stat>
        <Stat name="Failed" note="no quota, or a run is gone">
          {countText(failed)}
        </Stat>
      </dl>
      {!bulk.dry_run && matched !== null && (
        <>
          <Meter part={judged} whole={matched} />
          <p class="note number">{`${percentText(judged, matched)} of them had their turn, at most ${countText(bulk.per_second)} a second.`}</p>
        </>
      )}
    </Card>
  );
}

/** The first members: jobs, or instants of a schedule. */
export function Sample({ bulk: { sample, action } }: { bulk: Bulk }) {
  if (sample.length === 0) return <p class="note">It has no members.</p>;
  return (
    <ul class="stack-close">
      {sample.map((member) => (
        <li key={member} class="break">
          {action === "backfill" ? (
            <Time at={member} />
          ) : (
            <Link href={hrefOf("jobs", [member])}>{member}</Link>
          )}
        </li>
      ))}
    </ul>
  );
}

function Facts({ bulk }: { bulk: Bulk }) {
  return (
    <Card title="Facts">
      <dl class="facts">
        <dt>Filter</dt>
        <dd>{filterText(bulk.filter)}</dd>
        <dt>Pace</dt>
        <dd class="number">{`${countText(bulk.per_second)} a second`}</dd>
        <dt>Created</dt>
        <dd>
          <Time at={bulk.created_at} />
        </dd>
        <dt>Started</dt>
        <dd>
          <Time at={bulk.started_at} otherwise="not yet" />
        </dd>
        <dt>Ended</dt>
        <dd>
          <Time at={bulk.ended_at} otherwise="not yet" />
        </dd>
        <dt>Id</dt>
        <dd>
          <Id id={bulk.id} />
        </dd>
      </dl>
    </Card>
  );
}
