import { Type } from "@sinclair/typebox";

/** An instant as the API writes it: ISO 8601 in UTC with milliseconds. */
export const Timestamp = Type.String({ format: "date-time", examples: ["2026-11-01T09:30:00.000Z"] });

export function timestampOf(at: number): string {
  return new Date(at).toISOString();
}

export function timestampOrNull(at: number | null): string | null {
  return at === null ? null : timestampOf(at);
}
