/** The system's error codes in words for the owner of the target. No text holds an address. */
const WORDS: Record<string, string> = {
  ECONNREFUSED: "The target refused the connection",
  ECONNRESET: "The target reset the connection",
  EPIPE: "The target closed the connection without an answer",
  ETIMEDOUT: "The target did not take the connection in time",
  EHOSTUNREACH: "The target's host cannot be reached",
  ENETUNREACH: "The target's network cannot be reached",
};

/**
 * Says why a connection failed. Only the code of a system error is told: its text names the address that was dialled,
 * which perhaps only this cell's resolver knows. The text of a TLS error speaks of the target's own certificate and is
 * told.
 */
export function explainFault(error: Error | null, otherwise: string): string {
  if (error === null) return otherwise;
  const { code, syscall } = error as { code?: unknown; syscall?: unknown };
  if (typeof code !== "string") return otherwise;
  const words = WORDS[code];
  if (words !== undefined) return `${words} (${code}).`;
  if (syscall !== undefined || /^E[A-Z0-9]+$/.test(code)) return `The connection failed (${code}).`;
  return `${error.message} (${code})`;
}
