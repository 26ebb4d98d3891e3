import { isBulkOver } from "../../../shared/domain/bulk.ts";
import type { EventOf, Facts, Found } from "./facts.ts";

/** Bulk operations. */

const WINDOW_MS = 1_000;

type Page = EventOf<"bulk judged">;

/**
 * Each member is judged once, and its outcome is counted. No second has more members than the pace allows, and each
 * scope runs one operation at a time. Each operation ends, and a dry run judges nothing.
 */
export function* findWrongBulks(facts: Facts): Found {
  const { final, terms } = facts.history;
  const bulks = final.bulks ?? [];
  const pages = facts.of("bulk judged");
  const ofBulk = Map.groupBy(pages, ({ bulk }) => bulk);
  for (const { bulk: subject, isDry, perSecond, status, matched, left, ...counts } of bulks) {
    const own = ofBulk.get(subject) ?? [];
    const judged = own.flatMap(({ members }) => members);
    const twice = judged.length - new Set(judged.map(({ member }) => member)).size;
    if (twice > 0) yield { subject, text: `${twice} members were judged again` };
    for (const outcome of ["done", "skipped", "failed"] as const) {
      const count = judged.filter((member) => member.outcome === outcome).length;
      if (count !== counts[outcome])
        yield { subject, text: `${count} members were ${outcome}, and ${counts[outcome]} are told` };
    }
    if (status === "done" && (matched !== judged.length || left > 0))
      yield { subject, text: `it is done with ${judged.length} of ${matched} members, and ${left} are left` };
    if (isDry && judged.length > 0) yield { subject, text: "a dry run judged members" };
    if (terms.isDrained && !isBulkOver(status))
      yield { subject, text: `it is still ${status} although everything had the time to end` };
    yield* tooFast(subject, own, perSecond);
  }
  yield* atOnce(pages, new Map(bulks.map(({ bulk, scope }) => [bulk, scope])));
}

/** The count begins anew after the clock was set back: the same second then passes twice by that clock. */
function* tooFast(subject: string, pages: readonly Page[], perSecond: number): Found {
  let begin = 0;
  for (const [index, page] of pages.entries()) {
    if (page.judgedAt < (pages[index - 1]?.judgedAt ?? 0)) begin = index;
    const within = pages
      .slice(begin, index + 1)
      .filter(({ judgedAt }) => judgedAt > page.judgedAt - WINDOW_MS)
      .reduce((sum, { members }) => sum + members.length, 0);
    if (within > perSecond)
      yield {
        subject,
        text: `${within} members were judged in the second before ${page.judgedAt}, of ${perSecond}`,
      };
  }
}

/** Once members of another operation of the scope were judged, none of an earlier operation are judged. */
function* atOnce(pages: readonly Page[], scopeOf: ReadonlyMap<string, string>): Found {
  const over = new Map<string, Set<string>>();
  const last = new Map<string, string>();
  for (const { bulk } of pages) {
    const scope = scopeOf.get(bulk) ?? bulk;
    const before = last.get(scope);
    const others = over.get(scope) ?? new Set();
    over.set(scope, others);
    if (before !== undefined && before !== bulk) others.add(before);
    if (others.has(bulk)) yield { subject: bulk, text: "it ran at the same time as another one" };
    last.set(scope, bulk);
  }
}
