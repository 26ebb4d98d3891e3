import type { Database } from "../../../shared/store/database/database.ts";
import { storeJobs, type Wish } from "./jobs.ts";
import type { Sink } from "./own-cell.ts";
import { until } from "./processes.ts";

/**
 * Two cells on one machine are watched by turns of a second or so, since a machine's p99 changes from minute to minute. Jobs
 * become due one after another in one cell, and then in the other.
 */
export interface Watched {
  name: string;
  db: Database;
  sink: Sink;
  /** What is asked for in the jobs of each kind. Kinds take turns from job to job. */
  kinds: readonly ((index: number) => Omit<Wish, "targetUrl" | "runAt">)[];
  /** How late the jobs of each kind were, in milliseconds: a list for each turn. */
  late: number[][][];
}
/** The same cell, of which nothing is known yet. */
export const afresh = (watched: Watched, name = watched.name): Watched => ({
  ...watched,
  name,
  late: watched.kinds.map(() => []),
});
/** Two cells that are compared. */
export type Pair = readonly [Watched, Watched];

export interface Turns {
  /** Turns of each cell. */
  count: number;
  seconds: number;
  perSecond: number;
}

/** The lead before the first job is due. */
const LEAD_MS = 3_000;
/** The least rate at which jobs are stored. It sets the due time, so that all are stored before they are due. */
const STORED_PER_S = 4_000;
const DRAWS = 400;
type Lists = readonly (readonly number[])[];
/**
 * The figures of a kind's lateness. p99 over all jobs tells of each standstill. The machine causes most of them, and one standstill
 * changes this p99 by half. The p99 of a turn, at the median of all turns, tells of what happens in most turns.
 */
const FIGURES: { name: string; of(turns: Lists): number }[] = [
  { name: "p50", of: (turns) => partOf(turns.flat(), 0.5) },
  { name: "p99", of: (turns) => partOf(turns.flat(), 0.99) },
  {
    name: "p99 of a turn",
    of: (turns) =>
      partOf(
        turns.map((turn) => partOf(turn, 0.99)),
        0.5,
      ),
  },
];
export const FIGURE_NAMES: string[] = FIGURES.map(({ name }) => name);

/** Watches the two cells, and adds how late their jobs were. */
export async function watchByTurns(pair: Pair, turns: Turns): Promise<void> {
  const { count, seconds, perSecond } = turns;
  const perTurn = perSecond * seconds;
  const storedIn = LEAD_MS + (2 * count * perTurn * 1_000) / STORED_PER_S;
  const firstAt = Math.ceil(Date.now() + storedIn);
  // Stored instants drop fractions, so whole milliseconds give each job the instant that finds its place again.
  const placesOf = new Map<Watched, Map<number, { kind: number; turn: number }>>();
  for (const [place, watched] of pair.entries()) {
    const places = new Map<number, { kind: number; turn: number }>();
    placesOf.set(watched, places);
    await storeJobs(watched.db, count * perTurn, (index) => {
      const turn = Math.floor(index / perTurn);
      // The two cells take turns in coming first.
      const slot = 2 * turn + ((place + turn) % 2);
      const runAt = Math.floor(firstAt + 1_000 * (slot * seconds + (index % perTurn) / perSecond));
      const kind = index % watched.kinds.length;
      places.set(runAt, { kind, turn });
      const wished = watched.kinds[kind]?.(index);
      if (wished === undefined) throw new Error(`${watched.name} has no kind of jobs`);
      return { ...wished, targetUrl: `${watched.sink.url}/hook`, runAt };
    });
    await watched.sink.begin("jobs&receipts");
  }
  if (Date.now() > firstAt) throw new Error("the first was due before the last was stored");
  // Nobody asks the sinks meanwhile.
  await Bun.sleep(firstAt + 2 * count * seconds * 1_000 - Date.now());
  for (const [{ sink, late }, places] of placesOf) {
    await untilReceived(sink, count * perTurn);
    for (const ofKind of late) ofKind.push(...Array.from({ length: count }, (): number[] => []));
    for (const [, at, dueAt] of (await sink.received()).receipts) {
      const { kind, turn } = places.get(dueAt) as { kind: number; turn: number };
      late[kind]?.[turn]?.push(at - dueAt);
    }
  }
}

/** Waits for this many jobs. Throws if no more arrive for a while. */
export async function untilReceived(sink: Sink, count: number): Promise<void> {
  for (let seen = 0; seen < count; ) {
    await until("more have arrived", async () => (await sink.counts()).jobCount > seen, 100);
    seen = (await sink.counts()).jobCount;
  }
}

/** Each of FIGURES, in milliseconds, as text. */
export const latenessOf = ({ late }: Watched, kind: number): string[] =>
  FIGURES.map((figure) => figure.of(late[kind] ?? []).toFixed(2));

/**
 * The second one's figures, relative to the first one's. The range holds 95 of 100 ratios of as many turns that are drawn from the
 * measured ones (Efron's bootstrap, 1979).
 */
export function ratiosOf([one, other]: Pair, kind: number): string {
  const [late, otherLate] = [one.late[kind] ?? [], other.late[kind] ?? []];
  const drawn = Array.from({ length: DRAWS }, () =>
    Array.from(late, () => Math.floor(Math.random() * late.length)),
  );
  return FIGURES.map(({ name, of }) => {
    const ratioOf = (places: readonly number[]) => {
      const draw = (turns: Lists) => places.map((place) => turns[place] ?? []);
      return of(draw(otherLate)) / of(draw(late));
    };
    const ratios = drawn.map(ratioOf).toSorted((a, b) => a - b);
    const at = (share: number) => ratios[Math.floor(share * DRAWS)]?.toFixed(2);
    return `${name} ${ratioOf([...late.keys()]).toFixed(3)} (${at(0.025)} to ${at(0.975)})`;
  }).join(", ");
}

/** The value below which this part of the values lies. */
function partOf(values: readonly number[], part: number): number {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.floor(part * sorted.length)] ?? Number.NaN;
}
