import type { ClockReading, FinalJob, FinalRun, GateName, History, HistoryEvent } from "./history.ts";

/** The evidence that properties do not hold. `subject` is the id that the evidence is about. */
export type Found = Iterable<{ subject: string; text: string }>;

export type EventOf<Kind extends HistoryEvent["kind"]> = Extract<HistoryEvent, { kind: Kind }>;
export type Arrival = EventOf<"request arrived">;

/** A gate as one text. */
export const gateText = ({ project, environment, gate }: GateName): string =>
  `${project} ${environment} ${gate}`;
const flowOf = ({ project, environment, flow }: FinalJob): string | undefined =>
  flow && gateText({ project, environment, gate: flow.key });

const endsOf = ({ startedAt, durationMs }: FinalRun): number[] => [startedAt, startedAt + durationMs];

/** The history, indexed by its subjects. */
export class Facts {
  readonly arrivals: Arrival[];
  readonly leaves: ReadonlyMap<number, EventOf<"request left">>;
  readonly runs: ReadonlyMap<string, FinalRun[]>;
  readonly jobs: ReadonlyMap<string, FinalJob>;
  /** The jobs of each flow key (gateText), and the settings of its limits. */
  readonly jobsOfFlow: ReadonlyMap<string, FinalJob[]>;
  readonly flowSets: ReadonlyMap<string, EventOf<"flow set">[]>;
  /** The hosts (gateText) that were ever down. */
  readonly downHosts: ReadonlySet<string>;
  /** The runs that retries by hand have asked for. */
  readonly runsByHand: ReadonlySet<string>;
  private readonly setBacks: ClockReading[];
  /** The due time of each attempt, as far as it is known, by the job's id and the attempt's number. */
  readonly dueAts = new Map<string, number>();

  constructor(readonly history: History) {
    this.arrivals = this.of("request arrived");
    this.leaves = new Map(this.of("request left").map((left) => [left.request, left]));
    const runs = history.final.runs.toSorted((one, other) => one.attempt - other.attempt);
    this.runs = Map.groupBy(runs, ({ job }) => job);
    this.jobs = new Map(history.final.jobs.map((job) => [job.job, job]));
    const clocks = this.of("clock set").map(({ clock }) => clock);
    this.setBacks = clocks.filter(({ nowAt, latestAt }) => nowAt < latestAt);
    const keyed = history.final.jobs.filter(({ flow }) => flow !== undefined);
    this.jobsOfFlow = Map.groupBy(keyed, (job) => flowOf(job) ?? "");
    this.downHosts = new Set((history.final.downTimes ?? []).map(gateText));
    this.flowSets = Map.groupBy(this.of("flow set"), gateText);
    this.runsByHand = new Set(this.of("retry asked").map(({ run }) => run));
    for (const { job, dueAt } of this.of("job accepted")) this.dueAts.set(`${job}/1`, dueAt);
    for (const { job, attempt, nextRetryAt } of runs)
      if (nextRetryAt !== null) this.dueAts.set(`${job}/${attempt + 1}`, nextRetryAt);
  }

  /** Whether the host of a job was ever down. */
  hasDownHost({ project, environment, host }: FinalJob): boolean {
    return host !== undefined && this.downHosts.has(gateText({ project, environment, gate: host }));
  }

  /** Whether the database's clock showed an instant from `from` to `until` twice, since it was set back. */
  cameTwice(from: number, until: number): boolean {
    return this.setBacks.some(({ nowAt, latestAt }) => nowAt <= until && latestAt >= from);
  }

  /**
   * The longest time that an attempt can have waited since the last event at its flow key that may have kept it from
   * starting: an attempt of the key began or ended, a job was canceled, the limits were set. Null without a key.
   */
  idleMsOf({ id, at, clock }: Arrival): number | null {
    const job = this.jobs.get(id);
    const flow = job && flowOf(job);
    if (flow === undefined) return null;
    const others = this.jobsOfFlow.get(flow) ?? [];
    const sets = this.flowSets.get(flow) ?? [];
    const doneAts = [
      ...others.flatMap(({ job }) => (job === id ? [] : (this.runs.get(job) ?? []).flatMap(endsOf))),
      ...sets.map(({ clock }) => clock.latestAt),
    ].filter((doneAt) => doneAt <= clock.nowAt);
    const canceledAts = this.of("job canceled").flatMap((event) =>
      event.at <= at && others.some(({ job }) => job === event.job) ? [event.at] : [],
    );
    const windowMs = Math.max(0, ...sets.map(({ rate }) => (rate?.perSeconds ?? 0) * 1_000));
    return Math.min(clock.nowAt - Math.max(0, ...doneAts), at - Math.max(0, ...canceledAts)) - windowMs;
  }

  of<Kind extends HistoryEvent["kind"]>(kind: Kind): EventOf<Kind>[] {
    return this.history.events.filter((event): event is EventOf<Kind> => event.kind === kind);
  }

  /**
   * The time until which a request counts as in flight: its end, or the instant at which its permit may be taken from
   * it, which is told from its start on. An attempt whose claim was answered late starts long before its request. The
   * connection of a node that stands still may stay open for longer, which nobody can know.
   */
  endOf({ request, at, what, id, run, clock }: Arrival): number {
    const { attemptTimeoutMs, webhookTimeoutMs, graceMs } = this.history.terms;
    const timeoutMs = what === "job" ? attemptTimeoutMs : webhookTimeoutMs;
    const startedAt = this.runs.get(id)?.find((one) => one.run === run)?.startedAt ?? clock.nowAt;
    const givenUpAt = at - Math.max(0, clock.nowAt - startedAt) + timeoutMs + graceMs;
    return Math.min(this.leaves.get(request)?.at ?? Number.POSITIVE_INFINITY, givenUpAt);
  }
}
