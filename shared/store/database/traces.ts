import type { TraceContext } from "../../domain/trace.ts";

/** A place in a trace as 25 bytes in hexadecimal digits, from which `decode` makes the column's value. */
export function traceHex(trace: TraceContext | null): string | null {
  return trace === null ? null : `${trace.traceId}${trace.spanId}${trace.isSampled ? "01" : "00"}`;
}

export function readTrace(bytes: Buffer | null): TraceContext | null {
  if (bytes === null) return null;
  const hex = bytes.toString("hex");
  return { traceId: hex.slice(0, 32), spanId: hex.slice(32, 48), isSampled: hex.endsWith("01") };
}
