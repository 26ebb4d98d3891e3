import type { RunStatus } from "./run.ts";

/** How much of a reason the log tells. */
export const REASON_CHARACTERS_MAX = 200;

/**
 * Why an attempt failed, in words of the service's own. A target's answer, its Location too, belongs to the target's owner
 * and stays out of the log. Null for a success.
 */
export function reasonOf({
  status,
  responseStatus,
  error,
}: {
  status: Exclude<RunStatus, "running">;
  responseStatus: number | null;
  error: string | null;
}): string | null {
  if (error === null) return null;
  // An error without a status holds nothing of an answer. A TLS error may quote names of the target's certificate.
  if (responseStatus === null) return error.slice(0, REASON_CHARACTERS_MAX).replace(/\p{C}/gu, "\ufffd");
  const answered = `The target answered ${responseStatus}`;
  if (status === "timed_out") return `${answered}, but its body was not complete in time.`;
  if (responseStatus >= 200 && responseStatus <= 299) return `${answered}, but its body broke off.`;
  const isRedirect = responseStatus >= 300 && responseStatus <= 399;
  return isRedirect ? `${answered}, and redirects are not followed.` : `${answered}.`;
}
