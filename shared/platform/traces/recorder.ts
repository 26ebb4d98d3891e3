import {
  type HrTime,
  type Span as OpenSpan,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  TraceFlags,
  trace,
} from "@opentelemetry/api";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { resourceFromAttributes } from "@opentelemetry/resources";
import {
  AlwaysOnSampler,
  BatchSpanProcessor,
  RandomIdGenerator,
  type SpanExporter,
  TracerProvider,
} from "@opentelemetry/sdk-trace";
import { traceIdOf } from "../../domain/trace.ts";
import type { Log } from "../log.ts";
import type { Recorder, Span } from "./traces.ts";

/** Spans kept for a collector that is slow or down. Further spans are dropped. */
const WAITING_SPANS_MAX = 2_048;
const SPANS_PER_REQUEST_MAX = 512;
const SEND_EVERY_MS = 1_000;
const SEND_TIMEOUT_MS = 5_000;
/** Longer than the client's own timeout, which does not end an answer that comes byte by byte. */
const GIVE_UP_MS = 6_000;
/** Enough for the flush at the end, which sends all waiting spans at once, beside the requests under way. */
const REQUESTS_IN_FLIGHT_MAX = 2 * (WAITING_SPANS_MAX / SPANS_PER_REQUEST_MAX);
/** A collector that does not answer must not keep a process from its end. */
const FLUSH_TIMEOUT_MS = 2_000;
const COMPLAIN_EVERY_MS = 60_000;
/** The packages' code for success. The package that exports a name for it is no dependency of ours. */
const SENT = 0;

const KINDS = { server: SpanKind.SERVER, internal: SpanKind.INTERNAL, consumer: SpanKind.CONSUMER };

/** Makes spans and sends them in batches to an OpenTelemetry collector, as OTLP over HTTP in JSON. */
export function startRecorder(options: {
  service: string;
  nodeName: string;
  endpoint: string;
  log: Log;
}): Recorder {
  const { service, nodeName, endpoint, log } = options;
  const random = new RandomIdGenerator();
  /** The trace id of the span that is being begun, from the id of the request or job that it belongs to. */
  let traceId = "";
  const provider = new TracerProvider({
    resource: resourceFromAttributes({
      "service.name": `jobwheel-${service}`,
      "service.instance.id": nodeName,
    }),
    // chooseTraces has already decided that the span is recorded.
    sampler: new AlwaysOnSampler(),
    idGenerator: { generateTraceId: () => traceId, generateSpanId: () => random.generateSpanId() },
    spanProcessors: [
      new BatchSpanProcessor({
        exporter: complaining(
          new OTLPTraceExporter({
            url: `${endpoint.replace(/\/+$/, "")}/v1/traces`,
            timeoutMillis: SEND_TIMEOUT_MS,
            concurrencyLimit: REQUESTS_IN_FLIGHT_MAX,
          }),
          log,
        ),
        maxQueueSize: WAITING_SPANS_MAX,
        maxExportBatchSize: SPANS_PER_REQUEST_MAX,
        scheduledDelayMillis: SEND_EVERY_MS,
        exportTimeoutMillis: GIVE_UP_MS,
      }),
    ],
  });
  const tracer = provider.getTracer("jobwheel");

  function show(span: OpenSpan): Span {
    const { traceId, spanId } = span.spanContext();
    return {
      context: { traceId, spanId, isSampled: true },
      beginRequest(name, at) {
        const within = trace.setSpan(ROOT_CONTEXT, span);
        return show(tracer.startSpan(name, { kind: SpanKind.CLIENT, startTime: timeOf(at) }, within));
      },
      note: (name, at) => void span.addEvent(name, timeOf(at)),
      end(at, { attributes, isError }) {
        span.setAttributes(attributes);
        if (isError) span.setStatus({ code: SpanStatusCode.ERROR });
        span.end(timeOf(at));
      },
    };
  }

  return {
    begin(parent, { name, kind, at, id, attributes }) {
      let within = ROOT_CONTEXT;
      if (parent === null) traceId = traceIdOf(id);
      else {
        const { traceId, spanId } = parent;
        const remote = { traceId, spanId, traceFlags: TraceFlags.SAMPLED, isRemote: true };
        within = trace.setSpanContext(ROOT_CONTEXT, remote);
      }
      return show(tracer.startSpan(name, { kind: KINDS[kind], startTime: timeOf(at), attributes }, within));
    },
    async stop() {
      const late = Promise.withResolvers<void>();
      const timer = setTimeout(late.resolve, FLUSH_TIMEOUT_MS);
      await Promise.race([provider.shutdown(), late.promise]);
      clearTimeout(timer);
    },
  };
}

/** Seconds and nanoseconds, because the packages guess the epoch of a plain number. */
const timeOf = (ms: number): HrTime => [Math.floor(ms / 1_000), Math.floor((ms % 1_000) * 1e6)];

/**
 * Wraps the exporter so that its failures are logged now and then and go no further: a flush continues with the other spans.
 * Only the status of the answer is logged, since the text could come from a host that is no collector.
 */
function complaining(exporter: SpanExporter, log: Log): SpanExporter {
  let lostCount = 0;
  let complainAt = Number.NEGATIVE_INFINITY;

  function complain(error: Error & { code?: string | number }, count: number): void {
    lostCount += count;
    if (performance.now() < complainAt) return;
    complainAt = performance.now() + COMPLAIN_EVERY_MS;
    log.warn({ reason: error.code ?? error.message, lostCount }, "traces.not_sent");
    lostCount = 0;
  }

  return {
    export(spans, done) {
      exporter.export(spans, ({ code, error }) => {
        if (code !== SENT) complain(error ?? new Error("unknown"), spans.length);
        done({ code: SENT });
      });
    },
    forceFlush: () => exporter.forceFlush?.() ?? Promise.resolve(),
    shutdown: () => exporter.shutdown(),
  };
}
