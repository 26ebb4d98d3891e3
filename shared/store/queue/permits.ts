import { STATEMENT_TIMEOUT_MS } from "../database/database.ts";

/**
 * Who gets a project's next permits (decisions.md, section 5), in the words of the statements that claim and settle. The
 * classes of domain/flow-class.ts are numbered by kind, then by environment.
 *
 * A claim that is refused, or put off for another class, notes its class and region in the flow. The settlement that frees
 * permits calls those that wait, and the permits are theirs by the rule for as long as they may need to come; so a class
 * that happens to ask first is not given what another is owed, and a class that does not come after all keeps nobody
 * waiting for longer than that.
 */
export const CALLED_MS = 250;

const CLASS_CODES = [0, 1, 2, 3];
/** For each class one text, which may say its number and its place in an array. */
const eachClass = (text: (code: number, place: number) => string): string[] =>
  CLASS_CODES.map((code) => text(code, code + 1));
const IN_USE = "f.development_jobs, f.production_jobs, f.development_webhooks, f.production_webhooks";

/**
 * A call can be later than the beginning of a claim that waited for it, but not by more than a statement may take; one
 * that is was made before the clock was set back, and would keep permits until it is that late again.
 */
const notToCome = (place: number) => `f.called_at[${place}] < now() + interval '${STATEMENT_TIMEOUT_MS} ms'`;
/** The classes that were told lately that permits are free, and have not come yet. */
const CALLED = eachClass(
  (code, place) =>
    `CASE WHEN f.called_at[${place}] > now() - interval '${CALLED_MS} ms' AND ${notToCome(place)} THEN ${1 << code} ELSE 0 END`,
).join(" | ");
/** When the last of them was told; CALLED_MS ago if there is none. */
const LAST_CALLED_AT = `greatest(now() - interval '${CALLED_MS} ms', ${eachClass((_, place) => `f.called_at[${place}]`).join(", ")})`;

/** Of a locked flow (f): what its permits are judged by. */
export const PERMIT_COLUMNS = `f.held, f.returned, f.last_class, ARRAY[${IN_USE}] AS in_use,
         f.concurrency - ${IN_USE.replaceAll(",", " -")} AS free, ${CALLED} AS called,
         least(${CALLED_MS} - extract(epoch FROM now() - ${LAST_CALLED_AT}) * 1000, ${CALLED_MS}) AS kept_ms`;
/** The same once more, to carry them on. */
export const PERMIT_NAMES = "held, returned, last_class, in_use, free, called, kept_ms";

/**
 * How late a class has its turn at a tie: the one that was granted a permit last comes last. A class that holds fewer
 * comes to a tie by the permits that it was granted just before.
 */
const turnOf = (classCode: number | string) =>
  `((${classCode} - last_class + 3) % 4 - 4 * in_use[${classCode} + 1])`;

/** Permits that would go to other classes, which have been called and have not come yet, before this one's turn. */
const KEPT_BEFORE = `CASE WHEN called & ~present = 0 THEN 0 ELSE ${eachClass(
  (code, place) =>
    `CASE WHEN called & ~present & ${1 << code} = 0 OR level <= in_use[${place}] THEN 0
          ELSE level - 1 - in_use[${place}] + CASE WHEN ${turnOf(code)} < ${turnOf("class")} THEN 1 ELSE 0 END END`,
).join(" + ")} END`;

/**
 * Selects from `candidates`, a query with PERMIT_NAMES, project_no, class, n and `wants` (whether it is in the running
 * for a permit), all of its columns and
 *   place: its place in the row for permits, as if nobody else were on the way;
 *   place_kept: the same with those that have been called before it.
 * A permit is had by whom `place_kept <= free`. Each permit goes to the class that holds fewer then.
 */
export const inTurn = (candidates: string): string => `
  SELECT *, place + ${KEPT_BEFORE} AS place_kept
    FROM (SELECT *, row_number() OVER (PARTITION BY project_no, wants ORDER BY level, ${turnOf("class")}, n) AS place
            FROM (SELECT *, in_use[class + 1] + row_number() OVER (PARTITION BY project_no, wants, class ORDER BY n) AS level,
                         coalesce(bit_or(1 << class) FILTER (WHERE wants) OVER (PARTITION BY project_no), 0) AS present
                    FROM (${candidates}) candidate) levelled) placed`;

/** What a claim makes of its place: the end of a CASE. Permits that are kept for others are asked for again soon. */
export const PLACE_VERDICT = `WHEN place > free THEN 'no_permit'
                 WHEN place_kept > free THEN 'early'
                 ELSE 'granted' END`;

const HAS_COME = eachClass(
  (code, place) => `CASE WHEN c.present & ${1 << code} <> 0 THEN '-infinity' ELSE f.called_at[${place}] END`,
).join(", ");

/** Assignments to a flow (f) of what a claim has granted and refused (c: CLAIMED_PERMITS). */
export const TAKE_PERMITS = `development_jobs = f.development_jobs + c.granted[1],
         production_jobs = f.production_jobs + c.granted[2],
         development_webhooks = f.development_webhooks + c.granted[3],
         production_webhooks = f.production_webhooks + c.granted[4],
         waiting = f.waiting | c.waiting,
         called_at = ARRAY[${HAS_COME}],
         last_class = coalesce(c.last_class, f.last_class)`;

/** The aggregates of TAKE_PERMITS over the verdicts of one project: `kind`, `taken` (it is granted just now), and their place. */
export const CLAIMED_PERMITS = `ARRAY[${eachClass((code) => `count(*) FILTER (WHERE taken AND class = ${code})`).join(", ")}] AS granted,
                 coalesce(bit_or(1 << (class * 4 + region)) FILTER (WHERE kind = 'no_permit' OR wants AND kind = 'early'), 0) AS waiting,
                 coalesce(bit_or(1 << class) FILTER (WHERE wants), 0)::smallint AS present,
                 (array_agg(class ORDER BY place DESC) FILTER (WHERE taken))[1] AS last_class`;

const IS_TOLD = eachClass(
  (code, place) =>
    `CASE WHEN f.waiting & ${0b1111 << (code * 4)} <> 0 THEN now() ELSE f.called_at[${place}] END`,
).join(", ");

/** Assignments to a flow (f) to which `count` permits come back: those that wait are called. */
export const returnPermits = (count: string): string => `returned = f.returned + ${count},
         called_at = CASE WHEN f.waiting = 0 THEN f.called_at ELSE ARRAY[${IS_TOLD}] END,
         waiting = 0`;

/** Whether a lane's shard (l) is to hear of what came back to its project's flow (f): some class of its waits there. */
export const IS_CALLED =
  "f.waiting & ((1 << (l.environment * 4 + l.region)) | (1 << ((l.environment + 2) * 4 + l.region))) <> 0";

/** Of what is owed, with its project's PERMIT_NAMES: whether an operator holds its project or its region. */
export const IS_HELD = "held OR region = ANY (ARRAY (SELECT h.region FROM held_regions h))";
