import type { FinalJob, FinalRun, History, HistoryEvent } from "./history.ts";

/** What shows that a property does not hold. `subject` is the id that it is about. */
export type Found = Iterable<{ subject: string; text: string }>;

export type EventOf<Kind extends HistoryEvent["kind"]> = Extract<HistoryEvent, { kind: Kind }>;
export type Arrival = EventOf<"request arrived">;

/** The history by its subjects. */
export class Facts {
  readonly arrivals: Arrival[];
  readonly leaves: ReadonlyMap<number, EventOf<"request left">>;
  readonly runs: ReadonlyMap<string, FinalRun[]>;
  readonly jobs: ReadonlyMap<string, FinalJob>;
  /** When each attempt of a job was due, as far as that is known, by the job's id and its number. */
  readonly dueAts = new Map<string, number>();

  constructor(readonly history: History) {
    this.arrivals = this.of("request arrived");
    this.leaves = new Map(this.of("request left").map((left) => [left.request, left]));
    const runs = history.final.runs.toSorted((one, other) => one.attempt - other.attempt);
    this.runs = Map.groupBy(runs, ({ job }) => job);
    this.jobs = new Map(history.final.jobs.map((job) => [job.job, job]));
    for (const { job, dueAt } of this.of("job accepted")) this.dueAts.set(`${job}/1`, dueAt);
    for (const { job, attempt, nextRetryAt } of runs)
      if (nextRetryAt !== null) this.dueAts.set(`${job}/${attempt + 1}`, nextRetryAt);
  }

  of<Kind extends HistoryEvent["kind"]>(kind: Kind): EventOf<Kind>[] {
    return this.history.events.filter((event): event is EventOf<Kind> => event.kind === kind);
  }

  /**
   * Until when a request counts as in flight: its end, or the instant at which its permit may be taken from it. Nobody can
   * know of a node that stands still whether its connection does.
   */
  endOf({ request, at, what }: Arrival): number {
    const { attemptTimeoutMs, webhookTimeoutMs, graceMs } = this.history.terms;
    const timeoutMs = what === "job" ? attemptTimeoutMs : webhookTimeoutMs;
    return Math.min(this.leaves.get(request)?.at ?? Number.POSITIVE_INFINITY, at + timeoutMs + graceMs);
  }
}
