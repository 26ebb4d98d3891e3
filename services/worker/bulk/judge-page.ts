import { pagesOf, readSelection } from "../../../shared/domain/bulk.ts";
import { firstIdAt, type IdSource, JOB_PREFIX, RUN_PREFIX } from "../../../shared/domain/ids.ts";
import type { OwedAttempt, Placed } from "../../../shared/domain/owed.ts";
import { retainedSince } from "../../../shared/domain/plan.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { backfillMembers } from "../../../shared/store/queue/bulk/backfill.ts";
import { cancelMembers } from "../../../shared/store/queue/bulk/cancel.ts";
import type { OpenBulk } from "../../../shared/store/queue/bulk/open-bulks.ts";
import type { BulkPlace, JudgedPage } from "../../../shared/store/queue/bulk/page.ts";
import { retryMembers } from "../../../shared/store/queue/bulk/retry.ts";

/** Judges the next page of a bulk operation's members. Null if it is no longer running, or the shard has another owner. */
export function judgePage(
  db: Database,
  bulk: OpenBulk,
  place: BulkPlace,
  { ids, now }: { ids: IdSource; now: number },
): Promise<(JudgedPage & { owed: Placed<OwedAttempt>[] }) | null> {
  const count = pagesOf(bulk.perSecond).membersMax;
  const newIds = (prefix: string) => Array.from({ length: count }, () => ids.next(prefix, now));
  const selection = readSelection(bulk.action, bulk.filter);
  switch (selection.action) {
    case "cancel":
      return cancelMembers(db, place, count);
    case "retry": {
      const sinceId = firstIdAt(RUN_PREFIX, retainedSince(bulk.plan, now));
      return retryMembers(db, place, { runIds: newIds(RUN_PREFIX), sinceId });
    }
    case "backfill":
      return backfillMembers(db, place, { jobIds: newIds(JOB_PREFIX), scheduleId: selection.scheduleId });
  }
}
