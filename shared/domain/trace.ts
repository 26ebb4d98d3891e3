import { idToUuid } from "./ids.ts";

/** A place in a trace (W3C Trace Context): whose children belong there, and whether what began it is recorded. */
export interface TraceContext {
  /** 32 hexadecimal digits, not all of them zero. */
  traceId: string;
  /** 16 hexadecimal digits, not all of them zero. */
  spanId: string;
  isSampled: boolean;
}

/** The form of version 00, which later versions begin with and may go on after. */
const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const FIRST_VERSION = "00";
const INVALID_VERSION = "ff";
const SAMPLED_FLAG = 1;
const ZEROS = /^0+$/;

/** Null for a header that is not there, or that is to be ignored as the Recommendation says: never a refusal. */
export function parseTraceparent(header: string | null): TraceContext | null {
  const [, version, traceId = "", spanId = "", flags = "", rest] = TRACEPARENT.exec(header ?? "") ?? [];
  if (version === undefined || version === INVALID_VERSION) return null;
  if (version === FIRST_VERSION && rest !== undefined) return null;
  if (ZEROS.test(traceId) || ZEROS.test(spanId)) return null;
  return { traceId, spanId, isSampled: (Number.parseInt(flags, 16) & SAMPLED_FLAG) !== 0 };
}

/** Only the flag whose meaning the Recommendation defines goes on; the others have to be zero. */
export function formatTraceparent({ traceId, spanId, isSampled }: TraceContext): string {
  return `${FIRST_VERSION}-${traceId}-${spanId}-${isSampled ? "01" : "00"}`;
}

/** The trace of what belongs to no other: whoever has the id of a request or of a job has its trace's as well. */
export function traceIdOf(id: string): string {
  return idToUuid(id).replaceAll("-", "");
}

/** Where something that is not recorded stands in the trace of `traceOf`: every `id` has a place of its own. */
export function unrecordedContext(traceOf: string, id: string): TraceContext {
  return { traceId: traceIdOf(traceOf), spanId: traceIdOf(id).slice(-16), isSampled: false };
}
