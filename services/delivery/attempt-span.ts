import type { Exchange } from "../../shared/domain/run.ts";
import { formatTraceparent, type TraceContext } from "../../shared/domain/trace.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Attributes, Span, Traces } from "../../shared/platform/traces/traces.ts";
import type { OwedItem } from "./attempt-kind.ts";

/** A granted attempt, which may have a place in a trace. */
interface Granted {
  trace: TraceContext | null;
  startedAt: number;
}

/**
 * Begins the span of an attempt, which lasts from when it was due until it is settled. Until its note "claimed" the
 * attempt waited for a permit, for room or for a hold to end; from there until its request begins it waits for the
 * signing secrets. Null if its trace is not recorded.
 */
export function beginAttempt(
  traces: Traces,
  { projectNo, environment, region, attempt, dueAt, id }: OwedItem,
  { trace, startedAt }: Granted,
  describe: () => { name: string; attributes: Attributes },
): Span | null {
  // If the API request or the firing is not recorded, nothing that follows from it begins a trace.
  if (trace === null) return null;
  const span = traces.begin(trace, projectNo, () => {
    const { name, attributes } = describe();
    return {
      name,
      kind: "consumer",
      at: dueAt,
      id,
      attributes: {
        ...attributes,
        "jobwheel.project_no": projectNo,
        "jobwheel.environment": environment,
        "jobwheel.region": region,
        "jobwheel.attempt": attempt,
        "jobwheel.lateness_ms": Math.round(startedAt - dueAt),
      },
    };
  });
  span?.note("claimed", startedAt);
  return span;
}

/**
 * Sends a request with its place in the trace as `traceparent`, so that the target's spans continue the trace of the
 * client that created the job. The place is the request's own span if that is recorded, else `unrecorded`.
 */
export async function sendTraced(
  span: Span | null,
  unrecorded: TraceContext,
  clock: Clock,
  send: (traceparent: string) => Promise<Exchange>,
): Promise<Exchange> {
  if (span === null) return send(formatTraceparent(unrecorded));
  const request = span.beginRequest("POST", clock.now());
  const exchange = await send(formatTraceparent(request.context));
  const isAnswered = exchange.kind === "answered";
  request.end(clock.now(), {
    attributes: {
      "http.request.method": "POST",
      ...(isAnswered
        ? { "http.response.status_code": exchange.status, "jobwheel.body_end": exchange.bodyEnd }
        : { "error.type": exchange.kind }),
    },
    isError: !isAnswered || exchange.status >= 400,
  });
  return exchange;
}

/** Ends an attempt's span, with the attempt's outcome. */
export function endAttempt(
  span: Span | null,
  at: number,
  { status, responseStatus, next }: { status: string; responseStatus: number | null; next: string },
): void {
  span?.end(at, {
    attributes: {
      "jobwheel.outcome": status,
      "jobwheel.next": next,
      ...(responseStatus === null ? {} : { "http.response.status_code": responseStatus }),
    },
    isError: status !== "succeeded",
  });
}
