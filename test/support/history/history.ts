import type { BulkStatus } from "../../../shared/domain/bulk.ts";
import type { JobStatus } from "../../../shared/domain/job.ts";
import type { RunStatus } from "../../../shared/domain/run.ts";
import type { WaitReason } from "../../../shared/domain/wait.ts";
import type { EventType } from "../../../shared/domain/webhook.ts";

/**
 * All that check-history.ts judges of a cell: the requests of clients, the arrivals at targets, and the final state of
 * the database. Simulations record it, and tests of real processes. `at`, `askedAt` and the instants of Terms are
 * milliseconds of one clock that is never set; other instants that end in `At` are milliseconds since 1970 by the
 * database's clock. Ids are those of the API.
 */
export interface History {
  terms: Terms;
  /** In the order of their times. */
  events: readonly HistoryEvent[];
  final: FinalState;
}

export interface Terms {
  /** The most requests that each project may have in flight, by its number. */
  limits: ReadonlyMap<number, number>;
  /** The projects that may have to wait for the end of a month. */
  withQuota: ReadonlySet<number>;
  attemptTimeoutMs: number;
  webhookTimeoutMs: number;
  /** For how long after its deadline an attempt may still hold its permit. */
  graceMs: number;
  /** From this time on nothing fails any more; attempts that are due by then are sent within `catchesUpWithinMs`. */
  healedAt: number;
  catchesUpWithinMs: number;
  /** From this time on everything works, and attempts that come due start within `startsWithinMs`. */
  quietFrom: number;
  startsWithinMs: number;
  /** How far the clocks of nodes may be from the database's, and a settlement from the end of its attempt. */
  toleranceMs: number;
  /** How long a statement may wait for locks, 0 if left out. Its findings have the time of its beginning. */
  statementWaitsMs?: number;
  /** Whether everything due had the time to end. */
  isDrained: boolean;
  /** The most requests of the API that a project may make within a minute, by its number, where that is checked. */
  requestsPerMinute?: ReadonlyMap<number, number>;
  /** The times at which the database came back without unflushed writes: the counts of requests may then be too low. */
  countsLostAt?: readonly number[];
}

/** The database's clock, and the latest that it has shown so far. They differ after it was set back. */
export interface ClockReading {
  nowAt: number;
  latestAt: number;
}

/** A flow key or a target host, in an environment of a project. */
export interface GateName {
  project: number;
  environment: string;
  /** The key, or the host as hostOfTarget spells it. */
  gate: string;
}

/** The limits of a flow key; null where there is none. */
export interface FlowLimits {
  concurrency: number | null;
  rate: { count: number; perSeconds: number } | null;
  paused: boolean;
}

export interface AskedJob {
  job: string;
  project: number;
  maxAttempts: number;
  baseSeconds: number;
  capSeconds: number;
  /** The client's own name of the request that asks for it, alone or with others. A repetition has the same name. */
  request?: string;
}

export type HistoryEvent =
  /** A client asks for a job. Without an answer the job may exist or not. */
  | ({ kind: "job asked"; at: number } & AskedJob)
  /** A request with an Idempotency-Key was answered with what it had made. */
  | { kind: "key answered"; at: number; key: string; made: string }
  /** The database's clock was set. */
  | { kind: "clock set"; at: number; clock: ClockReading }
  /** A request of the API was accepted at some instant from `askedAt` to `at`. */
  | { kind: "request accepted"; askedAt: number; at: number; project: number }
  /** The job was committed by the time of `clock`, which is left out where the order of flow keys is not checked. */
  | { kind: "job accepted"; at: number; job: string; dueAt: number; clock?: ClockReading }
  | { kind: "job refused"; at: number; job: string }
  /** A cancel was answered 200. The job had so many runs by then. */
  | { kind: "job canceled"; at: number; job: string; attempts: number }
  /** A retry by hand is asked for, which may take place without an answer. */
  | { kind: "retry asked"; at: number; job: string; run: string }
  | { kind: "retry accepted"; at: number; job: string; run: string; attempt: number }
  /** A request reaches its target. */
  | {
      kind: "request arrived";
      at: number;
      clock: ClockReading;
      request: number;
      what: "job" | "delivery";
      project: number;
      /** The job, or the event and the endpoint. */
      id: string;
      /** The id of the run, or of the event. */
      run: string;
      /** The number of a job's attempt; null where the request does not tell it. */
      attempt: number | null;
      body: string;
      /** The fault of its bytes or its signature, null if there is none; left out where neither was checked. */
      fault?: string | null;
    }
  /** A request is over at its target: answered with a status, or broken off. */
  | { kind: "request left"; at: number; request: number; status: number | null }
  /** An attempt was parked since its host takes no more requests now. Left out where hosts take every request. */
  | { kind: "attempt parked at full host"; at: number; job: string }
  /** An activation is noted before it is asked for, a pause once it is answered. */
  | { kind: "schedule set"; at: number; clock: ClockReading; schedule: string; isActive: boolean }
  /** An enabling is noted before it is asked for, a disabling once it is answered. */
  | { kind: "endpoint set"; at: number; endpoint: string; isEnabled: boolean }
  /** A flow key has these limits. Looser ones are noted before they are asked for, stricter ones once answered. */
  | ({ kind: "flow set"; at: number; clock: ClockReading } & GateName & FlowLimits)
  | { kind: "epoch granted"; at: number; shard: string; epoch: number; node: number }
  /** A statement that is fenced by this epoch has taken effect. */
  | { kind: "epoch used"; at: number; shard: string; epoch: number }
  /** Members of a bulk operation were judged by one statement, at that instant of the database's clock. */
  | { kind: "bulk judged"; at: number; judgedAt: number; bulk: string; members: readonly JudgedMember[] };

/** A job, or an instant of a schedule, and its outcome. */
export interface JudgedMember {
  member: string;
  outcome: "done" | "skipped" | "failed";
}

export interface FinalState {
  jobs: readonly FinalJob[];
  runs: readonly FinalRun[];
  events: readonly { id: string; job: string; project: number; type: EventType }[];
  deliveries: readonly FinalDelivery[];
  endpoints: readonly {
    id: string;
    url: string;
    project: number;
    environment: string;
    types: readonly EventType[];
    wasAlwaysEnabled: boolean;
  }[];
  schedules: readonly { id: string; instants: readonly number[]; spreadMs: number }[];
  firings: readonly FinalFiring[];
  /** Left out where clients ask for no bulk operation. */
  bulks?: readonly FinalBulk[];
  /** By project, the permits that are in use and the attempts that are on the wire. */
  permits: readonly { project: number; inUse: number; onWire: number }[];
  /** Left out where there are no flow keys and no hosts that were down. */
  gates?: readonly FinalGate[];
  /** The times when hosts were down, from host.down to host.up; left out where no project parks attempts at hosts. */
  downTimes?: readonly DownTime[];
  /** By project, the runs that its month has counted and those that exist. */
  usage: readonly { project: number; counted: number; runs: number }[];
  /** By project, the ended runs that insights tell and those that exist; left out where nothing is rolled up. */
  insights?: readonly { project: number; counted: number; runs: number }[];
}

export interface FinalJob extends AskedJob {
  status: JobStatus;
  attempts: number;
  environment: string;
  schedule: string | null;
  runAt: number;
  /** Left out for a job without a flow key. */
  flow?: { key: string; hold: "attempt" | "job" };
  /** The host of its target, as hostOfTarget spells it; left out where no host goes down. */
  host?: string;
}

/** The counts of a gate, and the jobs that stand there. `inUse` and `places` of a host are 0. */
export interface FinalGate extends GateName {
  inUse: number;
  /** The jobs that have a place. */
  places: number;
  waiting: number;
  /** The jobs that are parked. */
  parked: number;
}

export interface DownTime extends GateName {
  downAt: number;
  /** Null if the host is still down. */
  upAt: number | null;
}

export interface FinalRun {
  run: string;
  job: string;
  attempt: number;
  status: RunStatus;
  responseStatus: number | null;
  error: string | null;
  startedAt: number;
  durationMs: number;
  nextRetryAt: number | null;
  /** Why the last claim before the run's was refused, if that made the run late; left out where no host goes down. */
  heldFor?: WaitReason | null;
}

export interface FinalFiring {
  schedule: string;
  firedFor: number;
  job: string | null;
  replaced: number;
  /** Whether a bulk operation made the job, which is due at once then. */
  isBackfilled?: boolean;
}

export interface FinalBulk {
  bulk: string;
  /** Operations of one scope run one at a time. */
  scope: string;
  isDry: boolean;
  perSecond: number;
  status: BulkStatus;
  matched: number | null;
  done: number;
  skipped: number;
  failed: number;
  /** The members whose rows still exist. */
  left: number;
}

export interface FinalDelivery {
  id: string;
  event: string;
  endpoint: string;
  status: "pending" | "succeeded" | "failed" | "dropped";
  attempts: number;
}
