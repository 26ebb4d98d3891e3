import { ENVIRONMENTS } from "../../domain/scope.ts";
import { environmentCode } from "../database/codes.ts";
import { STATEMENT_TIMEOUT_MS } from "../database/database.ts";

/**
 * The order in which a project's permits are granted, as parts of the statements that claim and settle: each permit
 * goes to the waiting class that holds fewer at the moment, and ties alternate. The classes of domain/flow-class.ts are
 * numbered by kind, then by environment.
 *
 * A claim that is refused, or put off for another class, notes its class and region in the flow. The settlement that
 * frees permits calls the classes that wait, and keeps their permits by the rule for CALLED_MS. So a class that happens
 * to ask first does not get permits that another class is owed. A class that stays away delays the others by CALLED_MS
 * at most.
 */
export const CALLED_MS = 250;

const CLASS_CODES = [0, 1, 2, 3];
/** A text for each class, made of its number and its index in a Postgres array. */
const eachClass = (text: (code: number, place: number) => string): string[] =>
  CLASS_CODES.map((code) => text(code, code + 1));
const IN_USE = "f.development_jobs, f.production_jobs, f.development_webhooks, f.production_webhooks";

/**
 * A call may be later than the beginning of a claim that waited for it, by at most the time of a statement. A call
 * later than that was made before the clock was set back; it would keep permits until the clock has come to it again.
 */
const notToCome = (place: number) => `f.called_at[${place}] < now() + interval '${STATEMENT_TIMEOUT_MS} ms'`;
/** The classes that were called within CALLED_MS and have not come yet. */
const CALLED = eachClass(
  (code, place) =>
    `CASE WHEN f.called_at[${place}] > now() - interval '${CALLED_MS} ms' AND ${notToCome(place)} THEN ${1 << code} ELSE 0 END`,
).join(" | ");
/** The time of the last call; CALLED_MS ago if there is none. */
const LAST_CALLED_AT = `greatest(now() - interval '${CALLED_MS} ms', ${eachClass((_, place) => `f.called_at[${place}]`).join(", ")})`;

const FREE = `f.concurrency - ${IN_USE.replaceAll(",", " -")}`;

/** The columns of a locked flow (f) by which its permits are granted. */
export const PERMIT_COLUMNS = `f.held, f.returned, f.last_class, ARRAY[${IN_USE}] AS in_use,
         ${FREE} AS free, ${CALLED} AS called,
         least(${CALLED_MS} - extract(epoch FROM now() - ${LAST_CALLED_AT}) * 1000, ${CALLED_MS}) AS kept_ms`;
/** The names of these columns, for outer queries. */
export const PERMIT_NAMES = "held, returned, last_class, in_use, free, called, kept_ms";

/**
 * The turn of a class at a tie: the class that was granted the last permit comes last. A class that held fewer has
 * reached the tie by permits granted just before, so it comes after a class that held more.
 */
const turnOf = (classCode: number | string, inUse = `in_use[${classCode} + 1]`) =>
  `((${classCode} - last_class + 3) % 4 - 4 * ${inUse})`;

/** The number of permits, before this class's turn, that go to other classes which were called and have not come yet. */
const KEPT_BEFORE = `CASE WHEN called & ~present = 0 THEN 0 ELSE ${eachClass(
  (code, place) =>
    `CASE WHEN called & ~present & ${1 << code} = 0 OR level <= in_use[${place}] THEN 0
          ELSE level - 1 - in_use[${place}] + CASE WHEN ${turnOf(code)} < ${turnOf("class")} THEN 1 ELSE 0 END END`,
).join(" + ")} END`;

/**
 * Orders `candidates` for permits, so that each permit goes to the class that holds fewer at that point. `candidates`
 * is a query with PERMIT_NAMES, project_no, class, n and `wants` (it asks for a permit). Selects all columns of
 * `candidates`, `place` (a candidate's place among those that ask), and `place_kept` (its place if the permits kept for
 * called classes that have not come are counted as well). A permit is granted where `place_kept <= free`.
 */
export const inTurn = (candidates: string): string => `
  SELECT *, place + ${KEPT_BEFORE} AS place_kept
    FROM (SELECT *, row_number() OVER (PARTITION BY project_no, wants ORDER BY level, ${turnOf("class")}, n) AS place
            FROM (SELECT *, in_use[class + 1] + row_number() OVER (PARTITION BY project_no, wants, class ORDER BY n) AS level,
                         coalesce(bit_or(1 << class) FILTER (WHERE wants) OVER (PARTITION BY project_no), 0) AS present
                    FROM (${candidates}) candidate) levelled) placed`;

/**
 * The verdict of a claim by its place: the end of a CASE. An `early` claim asks again soon for a permit that is kept
 * for another class.
 */
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

/**
 * The aggregates for TAKE_PERMITS over the verdicts of one project: `kind`, `taken` (granted by this statement) and
 * `place`.
 */
export const CLAIMED_PERMITS = `ARRAY[${eachClass((code) => `count(*) FILTER (WHERE taken AND class = ${code})`).join(", ")}] AS granted,
                 coalesce(bit_or(1 << (class * 4 + region)) FILTER (WHERE kind = 'no_permit' OR wants AND kind = 'early'), 0) AS waiting,
                 coalesce(bit_or(1 << class) FILTER (WHERE wants), 0)::smallint AS present,
                 (array_agg(class ORDER BY place DESC) FILTER (WHERE taken))[1] AS last_class`;

/**
 * How many permits of a flow (f) are free for any class, in whatever order they ask; null if the flow is held, or if some class
 * was called and may still come. Exact if the flow is locked, and a guess otherwise.
 */
export const FREE_FOR_ANY = `CASE WHEN NOT f.held AND now() - interval '${CALLED_MS} ms' >= ALL (f.called_at) THEN ${FREE} END`;

const DEVELOPMENT_PLACE = `f.development_jobs + c.development, ${turnOf(0, "f.development_jobs")}`;
const PRODUCTION_PLACE = `f.production_jobs + c.production, ${turnOf(1, "f.production_jobs")}`;

const [DEVELOPMENT, PRODUCTION] = ENVIRONMENTS.map(environmentCode);

/** How many of these rows each project has in each environment (c: `project_no`, `development`, `production`). */
export const countByEnvironment = (rows: string): string => `(
       SELECT project_no, count(*) FILTER (WHERE environment = ${DEVELOPMENT}) AS development,
              count(*) FILTER (WHERE environment = ${PRODUCTION}) AS production
         FROM ${rows} GROUP BY project_no) c`;

const takeFreePermits = (lastClass: string) => `development_jobs = f.development_jobs + c.development,
         production_jobs = f.production_jobs + c.production,
         called_at = ARRAY[CASE WHEN c.development > 0 THEN '-infinity' ELSE f.called_at[1] END,
                           CASE WHEN c.production > 0 THEN '-infinity' ELSE f.called_at[2] END,
                           f.called_at[3], f.called_at[4]],
         last_class = ${lastClass}`;

/**
 * Assignments to a flow (f) with the effect of TAKE_PERMITS, if only jobs asked and all of them were granted: so many of each
 * environment (c: `development`, `production`), at least one.
 */
export const TAKE_FREE_PERMITS =
  takeFreePermits(`CASE WHEN c.production = 0 THEN 0 WHEN c.development = 0 THEN 1
                           WHEN (${PRODUCTION_PLACE}) > (${DEVELOPMENT_PLACE}) THEN 1 ELSE 0 END`);
/** The same for one job. The classes of jobs are numbered by their environments. */
export const TAKE_FREE_PERMIT = takeFreePermits("c.production");

const eachOf = (condition: string, prefix = "") =>
  `count(*) FILTER (WHERE environment = ${DEVELOPMENT} AND ${condition}) AS ${prefix}development,
              count(*) FILTER (WHERE environment = ${PRODUCTION} AND ${condition}) AS ${prefix}production`;
/** How many of the rows `ended` and `started` each project has in each environment, for HAND_ON_PERMITS. */
export const countHandedOn = (ended: string, started: string): string => `(
       SELECT project_no, ${eachOf("NOT is_next")}, ${eachOf("is_next", "next_")}
         FROM (SELECT project_no, environment, false AS is_next FROM ${ended} UNION ALL SELECT project_no, environment, true FROM ${started}) r
        GROUP BY project_no) c`;
/**
 * Assignments to a flow (f) in which so many attempts of each environment have ended (c: `development`, `production`), and so many
 * others have started with their permits (`next_development`, `next_production`), as if all had come back and been taken again.
 */
export const HAND_ON_PERMITS = `development_jobs = f.development_jobs - c.development + c.next_development,
         production_jobs = f.production_jobs - c.production + c.next_production,
         returned = f.returned + c.development + c.production,
         called_at = ARRAY[CASE WHEN c.next_development > 0 THEN '-infinity' ELSE f.called_at[1] END,
                           CASE WHEN c.next_production > 0 THEN '-infinity' ELSE f.called_at[2] END,
                           f.called_at[3], f.called_at[4]],
         last_class = CASE WHEN c.next_production > 0 THEN ${PRODUCTION} WHEN c.next_development > 0 THEN ${DEVELOPMENT} ELSE f.last_class END`;

const IS_TOLD = eachClass(
  (code, place) =>
    `CASE WHEN f.waiting & ${0b1111 << (code * 4)} <> 0 THEN now() ELSE f.called_at[${place}] END`,
).join(", ");

/** Assignments to a flow (f) to which `count` permits come back; the classes that wait are called. */
export const returnPermits = (count: string): string => `returned = f.returned + ${count},
         called_at = CASE WHEN f.waiting = 0 THEN f.called_at ELSE ARRAY[${IS_TOLD}] END,
         waiting = 0`;

/**
 * True if a lane's shard (l) has to hear of permits that came back to its project's flow (f): one of its classes waits
 * there.
 */
export const IS_CALLED =
  "f.waiting & ((1 << (l.environment * 4 + l.region)) | (1 << ((l.environment + 2) * 4 + l.region))) <> 0";

/** True if an operator holds the project or the region of what is owed. Needs the project's PERMIT_NAMES. */
export const IS_HELD = "held OR region = ANY (ARRAY (SELECT h.region FROM held_regions h))";

/** The time after which a held project is looked at again. */
export const HELD_PAUSE_SECONDS = 2;
