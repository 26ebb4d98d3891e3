import type { Operation } from "../../../shared/contract/operations/operation.ts";
import type { Environment, ProjectNo } from "../../../shared/domain/scope.ts";
import { parseTraceparent, type TraceContext } from "../../../shared/domain/trace.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Span, Traces } from "../../../shared/platform/traces/traces.ts";

/** The place of a request in its trace. It is found when it is first needed. */
export interface RequestTrace {
  /** Null if the client gave no trace and none is recorded. */
  context(): TraceContext | null;
  /** Ends the span of the request. `code` is the code of a refusal. */
  end(status: number, code: string | null): void;
}

/** A request that has a valid key and is within its rate. No other request is recorded. */
interface Traced {
  request: Request;
  readonly requestId: string;
  /** By performance.now(). */
  receivedAt: number;
}

/**
 * `tracestate` is not passed on, which the Recommendation allows. It may hold anything between the client and its vendors, it
 * would have to be kept with the job for up to ten years, and the target may belong to somebody else.
 */
export function createRequestTraces(
  traces: Traces,
  clock: Clock,
): (
  exchange: Traced,
  operation: Operation,
  scope: { projectNo: ProjectNo; environment: Environment },
) => RequestTrace {
  return (exchange, { method, path }, { projectNo, environment }) => {
    let place: { span: Span | null; parent: TraceContext | null } | null = null;

    function find() {
      const parent = parseTraceparent(exchange.request.headers.get("traceparent"));
      const span = traces.begin(parent, projectNo, () => ({
        name: `${method} ${path}`,
        kind: "server",
        at: clock.now() - (performance.now() - exchange.receivedAt),
        id: exchange.requestId,
        attributes: {
          "http.request.method": method,
          "http.route": path,
          "jobwheel.request_id": exchange.requestId,
          "jobwheel.project_no": projectNo,
          "jobwheel.environment": environment,
        },
      }));
      return { span, parent };
    }

    return {
      context() {
        place ??= find();
        return place.span?.context ?? place.parent;
      },
      end(status, code) {
        place ??= find();
        const ofRefusal = code === null ? {} : { "error.type": code };
        const attributes = { "http.response.status_code": status, ...ofRefusal };
        place.span?.end(clock.now(), { attributes, isError: status >= 500 });
      },
    };
  };
}
