import { writeIdBytes } from "./ids.ts";

/** A place in a trace (W3C Trace Context): the parent of further spans, and whether the trace is recorded. */
export interface TraceContext {
  /** 32 hexadecimal digits, not all of them zero. */
  traceId: string;
  /** 16 hexadecimal digits, not all of them zero. */
  spanId: string;
  isSampled: boolean;
}

/** The form of version 00. Later versions begin with it and may continue. */
const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const FIRST_VERSION = "00";
const INVALID_VERSION = "ff";
const SAMPLED_FLAG = 1;
const ZEROS = /^0+$/;

/** Null for a header that is missing or malformed. The Recommendation says to ignore a malformed one, so nothing is refused. */
export function parseTraceparent(header: string | null): TraceContext | null {
  const [, version, traceId = "", spanId = "", flags = "", rest] = TRACEPARENT.exec(header ?? "") ?? [];
  if (version === undefined || version === INVALID_VERSION) return null;
  if (version === FIRST_VERSION && rest !== undefined) return null;
  if (ZEROS.test(traceId) || ZEROS.test(spanId)) return null;
  return { traceId, spanId, isSampled: (Number.parseInt(flags, 16) & SAMPLED_FLAG) !== 0 };
}

/** Passes on only the flag that the Recommendation defines; it requires the others to be zero. */
export function formatTraceparent({ traceId, spanId, isSampled }: TraceContext): string {
  return `${FIRST_VERSION}-${traceId}-${spanId}-${isSampled ? "01" : "00"}`;
}

/** The trace of a request or job that belongs to no other trace: it has the bits of its id. */
export function traceIdOf(id: string): string {
  writeIdBytes(id, idBytes, 0);
  return idBytes.toString("hex");
}

const idBytes = Buffer.alloc(16);

/** The place of an unrecorded request in the trace of `traceOf`. Every `id` has a place of its own. */
export function unrecordedContext(traceOf: string, id: string): TraceContext {
  return { traceId: traceIdOf(traceOf), spanId: traceIdOf(id).slice(-16), isSampled: false };
}
