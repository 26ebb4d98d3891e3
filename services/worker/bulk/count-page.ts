import {
  type BulkSelection,
  type InstantSelection,
  readSelection,
  SAMPLE_MAX,
} from "../../../shared/domain/bulk.ts";
import { firstIdAt, JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import { retainedSince } from "../../../shared/domain/plan.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { findCandidates } from "../../../shared/store/queue/bulk/candidates.ts";
import { type CountedPage, countMembers } from "../../../shared/store/queue/bulk/counting.ts";
import type { OpenBulk } from "../../../shared/store/queue/bulk/open-bulks.ts";
import type { BulkPlace } from "../../../shared/store/queue/bulk/page.ts";
import { readLedger, readLedgerPlace } from "../../../shared/store/queue/ledger.ts";
import { findSchedule } from "../../../shared/store/resources/schedules.ts";

/** How many instants of a schedule a page looks at. */
const INSTANTS_PER_PAGE = 500;

/**
 * Counts one page of a bulk operation's members, from where its counting stands. Answers where the counting goes on, null after
 * the last page; "gone" if the operation is no longer being counted, or another worker counts it.
 */
export async function countPage(
  db: Database,
  bulk: OpenBulk,
  place: BulkPlace,
  now: number,
): Promise<{ countedTo: string | null } | "gone"> {
  const selection = readSelection(bulk.action, bulk.filter);
  const page = await pageOf(db, bulk, selection, now);
  const isWritten = await countMembers(db, place, { from: bulk.countedTo, ...page });
  return isWritten ? { countedTo: page.to } : "gone";
}

type FoundPage = Omit<CountedPage, "from">;

async function pageOf(
  db: Database,
  bulk: OpenBulk,
  selection: BulkSelection,
  now: number,
): Promise<FoundPage> {
  const keptSince = retainedSince(bulk.plan, now);
  if (selection.action === "backfill") return instantsOf(db, bulk, selection, keptSince);
  const { jobs, endId } = await findCandidates(db, bulk, selection, {
    afterId: bulk.countedTo,
    bulkId: bulk.id,
    sinceId: firstIdAt(RUN_PREFIX, keptSince),
  });
  const sample = jobs.slice(0, SAMPLE_MAX).map(({ id }) => uuidToId(JOB_PREFIX, id));
  return { to: endId, members: { kind: "jobs", jobs }, sample };
}

/** The instants of a page that the ledger shows without a job. The ledger is walked newest first; each page is oldest first. */
async function instantsOf(
  db: Database,
  bulk: OpenBulk,
  { scheduleId, fromAt, toAt }: InstantSelection,
  keptSince: number,
): Promise<FoundPage> {
  const schedule = await findSchedule(db, bulk, scheduleId);
  // The schedule was deleted since, and its ledger with it.
  if (schedule === null) return { to: null, members: { kind: "instants", instants: [] }, sample: [] };
  const { rows, isCut, endId } = await readLedger(
    db,
    schedule,
    {
      fromAt: Math.max(fromAt, keptSince),
      ...readLedgerPlace(bulk.countedTo, toAt - 1),
      limit: INSTANTS_PER_PAGE,
    },
    () => undefined,
  );
  const instants = rows.flatMap(({ at, jobId }) => (jobId === null ? [at] : [])).reverse();
  const sample = instants.slice(0, SAMPLE_MAX).map((at) => new Date(at).toISOString());
  const isFull = rows.length === INSTANTS_PER_PAGE;
  const to = isFull ? rows.at(-1)?.id : isCut ? endId : undefined;
  return { to: to ?? null, members: { kind: "instants", instants }, sample };
}
