import { Type } from "@sinclair/typebox";

/** An instant as the API writes it. It has a pattern, because TypeBox would keep the meaning of a `format` in a global. */
export const Timestamp = Type.String({
  title: "Timestamp",
  description: "ISO 8601 in UTC with milliseconds.",
  pattern: "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z$",
  examples: ["2026-11-01T09:30:00.000Z"],
});

export function timestampOf(at: number): string {
  return new Date(at).toISOString();
}

export function timestampOrNull(at: number | null): string | null {
  return at === null ? null : timestampOf(at);
}
