import { foundNobody } from "../../shared/domain/host-state.ts";
import { idTimeMs } from "../../shared/domain/ids.ts";
import {
  type Exchange,
  interruptedOutcome,
  judgeResponse,
  type Outcome,
  settleAttempt,
} from "../../shared/domain/run.ts";
import type { Region, Scope } from "../../shared/domain/scope.ts";
import { unrecordedContext } from "../../shared/domain/trace.ts";
import type { WaitReason } from "../../shared/domain/wait.ts";
import { type Clock, realNow } from "../../shared/platform/clock.ts";
import type { Span } from "../../shared/platform/traces/traces.ts";
import type { GrantedAttempt } from "../../shared/store/queue/claim.ts";
import { isPlain, type Settlement } from "../../shared/store/queue/settle.ts";
import type { Asked } from "./attempt-kind.ts";
import { sendTraced } from "./attempt-span.ts";
import type { Outbound } from "./outbound.ts";
import { signHeaders } from "./sign.ts";

/** A granted attempt, with the scope, region and shard of its job. */
export interface Sending extends Scope {
  region: Region;
  shard: number;
  attempt: number;
  granted: Asked<GrantedAttempt>;
  /** The host of its target, as hostOfTarget spells it. */
  host: string;
  /** The reason why the attempt waited, if it is known. */
  waitedFor?: WaitReason | undefined;
  /** Empty if they cannot be read; an unsigned request is not sent. */
  secrets: readonly string[];
  span: Span | null;
}

export interface Sender {
  outbound: Outbound;
  clock: Clock;
  timeoutMs: number;
  /** Aborted when the process may wait no longer for the requests on the wire. */
  shutdown: AbortSignal;
}

/** Sends one attempt and decides what follows from how it ended. Never throws. */
export async function sendAttempt(sending: Sending, sender: Sender): Promise<Settlement> {
  const { outbound, clock, timeoutMs, shutdown } = sender;
  const { granted, span } = sending;
  const unrecorded = granted.trace ?? unrecordedContext(granted.jobId, granted.runId);
  const begunAt = performance.now();
  const lateMs = Math.max(0, clock.now() - Math.max(granted.scheduledAt, idTimeMs(granted.jobId)));
  // Past the deadline others may take the attempt for lost, so it is not sent any more.
  const leftMs = timeLeftMs(granted, sender);
  const exchange: Exchange =
    leftMs <= 0
      ? { kind: "unsent", because: "late" }
      : sending.secrets.length === 0
        ? { kind: "unsent", because: "unsigned" }
        : await sendTraced(span, unrecorded, clock, (traceparent) =>
            outbound.post({
              url: granted.targetUrl,
              headers: headersOf(sending, traceparent, realNow(clock)),
              body: granted.payload,
              timeoutMs: leftMs,
              signal: shutdown,
            }),
          );
  const isInterrupted = shutdown.aborted && isBrokenOff(exchange);
  // A Retry-After that names an instant is by the target's clock. So it is judged by real time, as requests are signed.
  const outcome = isInterrupted ? interruptedOutcome() : judgeResponse(exchange, realNow(clock), timeoutMs);
  // An attempt that the service itself broke off tells nothing about the host.
  const nobody = isInterrupted ? null : foundNobody(exchange);
  const met = nobody === null ? undefined : { host: sending.host, nobody };
  const ended = settlementOf(sending, outcome, { lateMs, durationMs: performance.now() - begunAt });
  const settlement = { ...ended, met };
  // A status that has arrived is recorded, however the attempt ended.
  return exchange.kind === "answered" ? { ...settlement, responseStatus: exchange.status } : settlement;
}

/**
 * How long an attempt may still take, in milliseconds. The node's own time tells, from shortly before it began, however
 * the database's clock was set meanwhile. An attempt that an earlier claim had begun counts from its recorded start. A node
 * learns only within seconds that the database's clock was set forward; until then that start may seem to lie in the
 * future. Even so the attempt gets no more than `timeoutMs`.
 */
export function timeLeftMs(
  { startedAt, askedAt }: Asked<Pick<GrantedAttempt, "startedAt">>,
  { clock, timeoutMs }: Pick<Sender, "clock" | "timeoutMs">,
): number {
  if (askedAt !== null) return askedAt + timeoutMs - performance.now();
  return Math.min(startedAt + timeoutMs - clock.now(), timeoutMs);
}

/** Whether a shutdown may have ended the exchange. An exchange that stalled had met its deadline before. */
function isBrokenOff(exchange: Exchange): boolean {
  return exchange.kind === "faulted" || (exchange.kind === "answered" && exchange.bodyEnd === "broken");
}

function settlementOf(
  sending: Sending,
  outcome: Outcome,
  { lateMs, durationMs }: { lateMs: number; durationMs: number },
): Settlement {
  const { projectNo, environment, region, shard, attempt, granted, waitedFor } = sending;
  const { attemptsAllowed, maxAttempts, baseSeconds, capSeconds } = granted;
  const retryPolicy = { maxAttempts, baseSeconds, capSeconds };
  return {
    projectNo,
    environment,
    region,
    shard,
    jobId: granted.jobId,
    runId: granted.runId,
    isPlain: isPlain(granted),
    isKeyed: granted.isKeyed,
    status: outcome.kind,
    responseStatus: outcome.responseStatus,
    error: outcome.error,
    durationMs,
    lateMs,
    waitedFor,
    next: settleAttempt({ number: attempt, attemptsAllowed, retryPolicy }, outcome, Math.random),
  };
}

export const USER_AGENT = "Jobwheel/1";

/** The headers beside the payload; the API promises each of them. */
function headersOf(
  { environment, attempt, granted, secrets }: Sending,
  traceparent: string,
  now: number,
): Record<string, string> {
  const headers: Record<string, string> = {
    "content-type": "application/json",
    "user-agent": USER_AGENT,
    "service-job-id": granted.jobId,
    "service-run-id": granted.runId,
    "service-attempt": String(attempt),
    "service-attempt-fence": String(attempt),
    "service-scheduled-at": new Date(granted.scheduledAt).toISOString(),
    "service-environment": environment,
    "idempotency-key": granted.jobId,
    traceparent,
    ...signHeaders(granted.payload, { id: granted.runId, sentAt: now, secrets }),
  };
  if (granted.scheduleId !== null) headers["service-schedule-id"] = granted.scheduleId;
  return headers;
}
