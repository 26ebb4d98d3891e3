/** An OpenTelemetry collector: a real HTTP server that accepts OTLP in JSON and answers as it is told. */
export interface Collector {
  url: string;
  spans: CollectedSpan[];
  /** The bodies as they arrived. */
  texts: string[];
  /** Resolves once `isEnough` holds; rejects after `timeoutMs`. */
  until(isEnough: (spans: CollectedSpan[]) => boolean, timeoutMs?: number): Promise<CollectedSpan[]>;
  stop(): Promise<void>;
}

export interface CollectedSpan {
  service: string;
  name: string;
  /** OTLP's numbers: 1 internal, 2 server, 3 client, 5 consumer. */
  kind: number;
  traceId: string;
  spanId: string;
  /** Null for a root span. */
  parentId: string | null;
  /** Milliseconds since 1970. */
  startedAt: number;
  endedAt: number;
  isError: boolean;
  attributes: Record<string, string | number>;
  notes: string[];
}

const UNTIL_TIMEOUT_MS = 120_000;
const ERROR_STATUS = 2;

export function startCollector(
  answer: () => Response | Promise<Response> = () => Response.json({}),
): Collector {
  const spans: CollectedSpan[] = [];
  const texts: string[] = [];
  const waiting = new Set<() => void>();
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    async fetch(request) {
      const text = await request.text();
      if (new URL(request.url).pathname !== "/v1/traces") return new Response("", { status: 404 });
      texts.push(text);
      spans.push(...readSpans(JSON.parse(text)));
      for (const look of waiting) look();
      return answer();
    },
  });
  return {
    url: `http://127.0.0.1:${server.port}`,
    spans,
    texts,
    until(isEnough, timeoutMs = UNTIL_TIMEOUT_MS) {
      const { promise, resolve, reject } = Promise.withResolvers<CollectedSpan[]>();
      const timer = setTimeout(() => {
        waiting.delete(look);
        const names = spans.map(({ service, name }) => `${service} ${name}`);
        reject(new Error(`not enough came in ${timeoutMs} ms: ${names}`));
      }, timeoutMs);
      const look = () => {
        if (!isEnough(spans)) return;
        waiting.delete(look);
        clearTimeout(timer);
        resolve(spans);
      };
      waiting.add(look);
      look();
      return promise;
    },
    async stop() {
      await server.stop(true);
    },
  };
}

interface Value {
  stringValue?: string;
  intValue?: string | number;
  doubleValue?: number;
}
type Values = { key: string; value: Value }[];

interface Batch {
  resourceSpans: {
    resource: { attributes: Values };
    scopeSpans: {
      spans: {
        name: string;
        kind: number;
        traceId: string;
        spanId: string;
        parentSpanId?: string;
        startTimeUnixNano: string;
        endTimeUnixNano: string;
        status: { code?: number };
        attributes: Values;
        events: { name: string }[];
      }[];
    }[];
  }[];
}

function readSpans({ resourceSpans }: Batch): CollectedSpan[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }) =>
    scopeSpans.flatMap(({ spans }) =>
      spans.map((span) => ({
        service: String(readValues(resource.attributes)["service.name"]),
        name: span.name,
        kind: span.kind,
        traceId: span.traceId,
        spanId: span.spanId,
        parentId: span.parentSpanId ?? null,
        startedAt: Number(span.startTimeUnixNano) / 1e6,
        endedAt: Number(span.endTimeUnixNano) / 1e6,
        isError: span.status.code === ERROR_STATUS,
        attributes: readValues(span.attributes),
        notes: span.events.map(({ name }) => name),
      })),
    ),
  );
}

const readValues = (values: Values) =>
  Object.fromEntries(
    values.map(({ key, value }) => [key, value.stringValue ?? Number(value.intValue ?? value.doubleValue)]),
  );
