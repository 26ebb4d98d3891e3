import type { FlowKeyTerms } from "./flow-key.ts";
import type { HostStanding } from "./host-state.ts";
import type { Region } from "./scope.ts";
import type { WaitReason } from "./wait.ts";

/** Why an attempt that is owed has not been sent: the rule of `waiting` in GET /v2/jobs/{id}/explain. */

/** The reasons in the order in which they are checked. The first that applies is told. */
export const EXPLAINED_REASONS = [
  "hold",
  "quota",
  "no_worker",
  "due_time",
  "backoff",
  "host",
  "flow",
  "concurrency",
  "turn",
] as const satisfies (WaitReason | "no_worker" | "due_time" | "backoff" | "turn")[];
export type ExplainedReason = (typeof EXPLAINED_REASONS)[number];

/** The most attempts before another that are counted. */
export const AHEAD_MAX = 1_000;

/** How many attempts go before another; null if more than AHEAD_MAX do. The number may be unknown where thousands are due at once. */
export type Ahead = number | null | "unknown";

/** Facts that can keep attempts of a job's project, region and host from being sent. Instants are milliseconds since 1970. */
export interface Surroundings {
  isProjectHeld: boolean;
  isRegionHeld: boolean;
  region: Region;
  /** Runs of the month; `max` is null for a plan without a quota. */
  month: { runs: number; max: number | null; endsAt: number };
  hasWorker: boolean;
  hasDelivery: boolean;
  host: string;
  /** How many requests an operator lets each node have in flight to the host; null without such a limit. */
  hostRequestsMax: number | null;
  /** Null for a host that is well. */
  hostStanding: Pick<HostStanding, "state" | "by" | "nextProbeAt"> | null;
  /** The job's flow key; null if it has none. */
  flow: FlowSurroundings | null;
  /** Permits of the project, over both environments and all regions. */
  concurrency: number;
  permitsInUse: number;
}

/** The limits of a flow key, and how much of them is in use. */
export interface FlowSurroundings extends Pick<FlowKeyTerms, "concurrency" | "rate" | "paused"> {
  key: string;
  inUse: number;
  /** When the key's rate lets the next attempt start; null if the rate lets one start now. */
  nextStartAt: number | null;
}

/** An attempt that is owed and not on the wire. */
export interface OwedFacts {
  attempt: number;
  /** When the attempt was first due. */
  dueAt: number;
  /** When the run before this attempt ended; null for the first attempt, and if that is not known any more. */
  ranUntil: number | null;
  /** The attempt is a retry by hand, whose run was counted when it was asked for. */
  isByHand: boolean;
  /** The attempt is parked until its host takes more, its host is up, or its flow key lets it start. Null if not parked. */
  parkedFor: "full_host" | "host" | "flow" | null;
  /** The job has kept its place of the flow key's concurrency from an earlier attempt. */
  hasPlace: boolean;
  /** How many due attempts go before it in its lane or, if it is parked, where it is parked. */
  ahead: Ahead;
  /** How many due attempts of its flow key go before it; null for a job without a flow key. */
  aheadAtFlow: Ahead;
}

export interface Waiting {
  for: ExplainedReason;
  /** The instant from which the attempt could have run without this reason. */
  since: number;
  /** When the reason ends, if that is known. */
  until: number | null;
  /** Null beyond AHEAD_MAX, and if it is not known. */
  ahead: number | null;
  limit?: number;
  inUse?: number;
  flowKey?: string;
  host?: string;
  /** A sentence that can be passed on as it is. */
  message: string;
}

/** Tells why the attempt waits at `now`. `createdAt` is the job's. */
export function explainWait(
  owed: OwedFacts,
  around: Surroundings,
  { now, createdAt }: { now: number; createdAt: number },
): Waiting {
  const { dueAt } = owed;
  const isDue = dueAt <= now;
  const { month, host } = around;
  const ahead = knownOf(owed.ahead);
  const before = goBefore(owed.ahead);
  const waits = (reason: ExplainedReason, message: string, more: Partial<Waiting> = {}): Waiting => ({
    ...{ for: reason, since: dueAt, until: null, ahead: null, ...more },
    message,
  });

  if (around.isProjectHeld || around.isRegionHeld) {
    const what = around.isProjectHeld ? "this project" : `the region ${around.region}`;
    return waits(
      "hold",
      `The operator of the service holds ${what}. The attempt follows when the hold is lifted.`,
    );
  }
  if (month.max !== null && month.runs >= month.max && !owed.isByHand) {
    const until = Math.max(month.endsAt, dueAt);
    return waits(
      "quota",
      `All ${month.max} runs that the plan includes in a month were started. The attempt follows from ${textOf(until)} on, or after an upgrade.`,
      { until, ahead, limit: month.max, inUse: month.runs },
    );
  }
  if (!around.hasWorker || !around.hasDelivery) {
    const who = around.hasDelivery ? "worker looks after this project's jobs" : "delivery node is alive";
    return waits(
      "no_worker",
      `No ${who} in the region ${around.region} at the moment. The service is at fault.`,
    );
  }
  if (!isDue && owed.attempt === 1) {
    return waits("due_time", `The job is due at ${textOf(dueAt)}.`, { since: createdAt, until: dueAt });
  }
  if (!isDue) {
    return waits(
      "backoff",
      `Attempt ${owed.attempt} is due at ${textOf(dueAt)}, after attempt ${owed.attempt - 1} failed.`,
      {
        since: owed.ranUntil ?? dueAt,
        until: dueAt,
      },
    );
  }
  const standing = around.hostStanding;
  if (owed.parkedFor === "host" || standing?.state === "down") {
    const message =
      standing?.state !== "down"
        ? `${host} is coming back, and what is parked for it starts at a rate that doubles; ${before} before this one.`
        : standing.by === "hand"
          ? `A request has parked what is sent to ${host}. The attempt follows when the host is opened; ${before} before this one.`
          : `${host} is down, and what is sent there is parked until a probe reaches it; ${before} before this one.`;
    return waits("host", message, { ahead, host, until: standing?.nextProbeAt ?? null });
  }
  if (owed.parkedFor === "full_host" || around.hostRequestsMax === 0) {
    const limit = around.hostRequestsMax;
    const message =
      limit === 0
        ? `The operator of the service lets no request through to ${host}.`
        : `As many requests as ${host} is sent at a time are in flight there; ${before} before this one.`;
    return waits("host", message, { ahead, host, ...(limit !== null && { limit }) });
  }
  const flow = around.flow && findFlowLimit(owed, around.flow, now);
  if (flow !== null) {
    const { message, ...more } = flow;
    return waits("flow", `${message}; ${goBefore(owed.aheadAtFlow)} before this one.`, {
      ahead: knownOf(owed.aheadAtFlow),
      ...more,
    });
  }
  if (around.permitsInUse >= around.concurrency) {
    return waits(
      "concurrency",
      `The project has ${countOf(around.permitsInUse, "attempt", "attempts")} in progress and may have ${around.concurrency}; ${before} before this one.`,
      { ahead, limit: around.concurrency, inUse: around.permitsInUse },
    );
  }
  return waits("turn", `The attempt is due and nothing is in its way; ${before} before this one.`, { ahead });
}

/** Why a flow key keeps the attempt from starting, as the beginning of a sentence; null if it does not. */
function findFlowLimit(
  { parkedFor, hasPlace }: OwedFacts,
  { key, concurrency, rate, paused, inUse, nextStartAt }: FlowSurroundings,
  now: number,
): (Partial<Waiting> & { flowKey: string; message: string }) | null {
  const flowKey = key;
  if (paused) return { flowKey, limit: 0, inUse, message: `The flow key ${key} is paused` };
  if (concurrency !== null && inUse >= concurrency && !hasPlace) {
    const message = `The flow key ${key} has ${countOf(inUse, "place", "places")} taken and may have ${concurrency}`;
    return { flowKey, limit: concurrency, inUse, message };
  }
  if (rate !== null && nextStartAt !== null && nextStartAt > now) {
    const message = `The flow key ${key} lets ${countOf(rate.count, "attempt", "attempts")} start in ${rate.per_seconds} s, and the next one at ${textOf(nextStartAt)}`;
    return { flowKey, limit: rate.count, until: nextStartAt, message };
  }
  if (parkedFor !== "flow") return null;
  return { flowKey, message: `The attempt waits for its turn at the flow key ${key}` };
}

const knownOf = (ahead: Ahead) => (ahead === "unknown" ? null : ahead);
const goBefore = (ahead: Ahead) => {
  if (ahead === "unknown") return "an unknown number of those that are due at the same instant go";
  return ahead === null
    ? `more than ${AHEAD_MAX} attempts go`
    : countOf(ahead, "attempt goes", "attempts go");
};
const textOf = (at: number) => new Date(at).toISOString();
const countOf = (count: number, one: string, many: string) =>
  count === 0 ? `no ${one}` : count === 1 ? `1 ${one}` : `${count} ${many}`;
