import { Figures } from "../../domain/insights/figures.ts";
import { Hosts } from "../../domain/insights/hosts.ts";
import { bucketStart, LEVELS } from "../../domain/insights/levels.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { WAIT_REASONS } from "../../domain/wait.ts";
import { waitReasonOf } from "../database/codes.ts";
import { column, type Database, instant } from "../database/database.ts";
import { MOVE_PROGRESS, type Progress, progressValues } from "./progress.ts";

/** The owner of a row of figures, and its stretch of time. Environments and regions are codes. */
export interface PartKey {
  projectNo: ProjectNo;
  environment: number;
  region: number;
  level: number;
  /** The start of a bucket of the level, in milliseconds since 1970. */
  at: number;
}

export interface Part {
  key: PartKey;
  figures: Figures;
  hosts: Hosts;
}

/** The parts that a step has found, one for each key. */
export class Parts {
  private readonly parts = new Map<string, Part>();

  get all(): Iterable<Part> {
    return this.parts.values();
  }

  of(key: PartKey): Part {
    const name = `${key.projectNo} ${key.environment} ${key.region} ${key.level} ${key.at}`;
    let part = this.parts.get(name);
    if (part === undefined) {
      part = { key, figures: new Figures(), hosts: new Hosts() };
      this.parts.set(name, part);
    }
    return part;
  }

  /**
   * The parts for one minute of a project in every level that has the minute: the first level, and the levels that have closed its
   * bucket. Figures that come after the closing are added to these as well.
   */
  ofMinute(key: Omit<PartKey, "level">, progress: Progress): Part[] {
    const parts = [this.of({ ...key, level: 0 })];
    for (let level = 1; level < LEVELS.length; level++) {
      const at = bucketStart(level, key.at);
      const closedUntil = progress.closedUntil[level - 1] ?? 0;
      const isClosed =
        at < closedUntil || (at === closedUntil && key.projectNo <= (progress.closedProject[level - 1] ?? 0));
      if (isClosed) parts.push(this.of({ ...key, level, at }));
    }
    return parts;
  }
}

/**
 * Writes the parts, and `next` as the state of the roll-up. `next` still has the revision from which the step began. If another step
 * was written meanwhile, this writes nothing and answers false.
 */
export async function writeStep(db: Database, parts: readonly Part[], next: Progress): Promise<boolean> {
  const keys = parts.map(({ key }) => key);
  const figures = parts.map((part) => part.figures);
  const rows = await db.run<{ revision: string }>("write_insights", WRITE, [
    ...progressValues(next),
    column(keys.map(({ projectNo }) => projectNo)),
    column(keys.map(({ environment }) => environment)),
    column(keys.map(({ region }) => region)),
    column(keys.map(({ level }) => level)),
    column(keys.map(({ at }) => instant(at))),
    column(figures.map(({ created }) => created)),
    column(figures.map(({ succeeded }) => succeeded)),
    column(figures.map(({ failed }) => failed)),
    column(figures.map(({ timedOut }) => timedOut)),
    figures.map(waitedText),
    figures.map(({ late }) => late.encode()),
    figures.map(({ lateWaited }) => lateWaited.encode()),
    figures.map(({ durations }) => durations.encode()),
    parts.map(({ hosts }) => hosts.encode()),
  ]);
  return rows.length > 0;
}

const WRITE = `
WITH ${MOVE_PROGRESS}, written AS (
  INSERT INTO insights (part, project_no, environment, region, level, at, created, succeeded, failed, timed_out, waited_for, late,
                        late_waited, durations, hosts)
  SELECT moved.revision, i.project_no, i.environment, i.region, i.level, i.at, i.created, i.succeeded, i.failed, i.timed_out,
         i.waited_for::bigint[], i.late, i.late_waited, i.durations, i.hosts
    FROM moved CROSS JOIN unnest($8::int[], $9::smallint[], $10::smallint[], $11::smallint[], $12::timestamptz[], $13::bigint[],
                                 $14::bigint[], $15::bigint[], $16::bigint[], $17::text[], $18::bytea[], $19::bytea[], $20::bytea[],
                                 $21::text[])
         AS i (project_no, environment, region, level, at, created, succeeded, failed, timed_out, waited_for, late, late_waited,
               durations, hosts)
)
SELECT revision FROM moved`;

/** The columns of a row of figures, without its hosts. */
export const FIGURE_COLUMNS =
  "i.created::float8, i.succeeded::float8, i.failed::float8, i.timed_out::float8, i.waited_for::float8[], i.late, i.late_waited, i.durations";

export interface FigureRow {
  created: number;
  succeeded: number;
  failed: number;
  timed_out: number;
  waited_for: number[] | null;
  late: Uint8Array | null;
  late_waited: Uint8Array | null;
  durations: Uint8Array | null;
}

/** Adds what a row holds. */
export function addRow(figures: Figures, row: FigureRow): void {
  figures.created += row.created;
  figures.succeeded += row.succeeded;
  figures.failed += row.failed;
  figures.timedOut += row.timed_out;
  for (const [code, count] of (row.waited_for ?? []).entries()) {
    if (count > 0) figures.addWaited(waitReasonOf(code), count);
  }
  figures.late.addEncoded(row.late);
  figures.lateWaited.addEncoded(row.late_waited);
  figures.durations.addEncoded(row.durations);
}

/** How many runs waited for each reason, in the order of the reasons' codes; null for none. */
function waitedText({ waitedFor }: Figures): string | null {
  return waitedFor.size === 0 ? null : column(WAIT_REASONS.map((reason) => waitedFor.get(reason) ?? 0));
}
