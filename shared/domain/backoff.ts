/** When a failed attempt is tried again. */

export interface RetryPolicy {
  maxAttempts: number;
  baseSeconds: number;
  capSeconds: number;
}

/** A number in [0, 1), as from Math.random. */
export type Random = () => number;

/**
 * The milliseconds to wait after attempt number `attempt` (from 1): exponential backoff with full jitter
 * ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015). A Retry-After of the target counts where it is
 * longer, but never beyond the policy's cap.
 */
export function retryDelayMs(
  policy: RetryPolicy,
  attempt: number,
  retryAfterMs: number | null,
  random: Random,
): number {
  const jitteredMs = Math.floor(random() * (retryCeilingMs(policy, attempt) + 1));
  return Math.max(jitteredMs, Math.min(retryAfterMs ?? 0, policy.capSeconds * 1_000));
}

/** The longest wait that the jitter can choose after attempt number `attempt`, in milliseconds. */
export function retryCeilingMs(policy: RetryPolicy, attempt: number): number {
  return Math.min(policy.capSeconds, policy.baseSeconds * 2 ** (attempt - 1)) * 1_000;
}

const SECONDS_PATTERN = /^[0-9]+$/;
const MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec";
const CLOCK = "(?<time>[0-9]{2}:[0-9]{2}:[0-9]{2})";
// RFC 9110, section 5.6.7: the one form that is sent today, and the two that a recipient must still read.
const DATE_PATTERNS = [
  new RegExp(`^[A-Z][a-z]{2}, (?<day>[0-9]{2}) (?<month>${MONTHS}) (?<year>[0-9]{4}) ${CLOCK} GMT$`),
  new RegExp(`^[A-Z][a-z]{5,8}, (?<day>[0-9]{2})-(?<month>${MONTHS})-(?<year>[0-9]{2}) ${CLOCK} GMT$`),
  new RegExp(`^[A-Z][a-z]{2} (?<month>${MONTHS}) (?<day>[0-9 ][0-9]) ${CLOCK} (?<year>[0-9]{4})$`),
];

/**
 * The wait that a Retry-After header asks for; 0 for a date that has passed, null where it cannot be read. The header is read
 * only from an answer of status 429 or 503 (judgeResponse, domain/run.ts).
 */
export function parseRetryAfterMs(header: string, now: number): number | null {
  const text = header.trim();
  // Digits without end give Infinity, which the policy's cap bounds like any other wait.
  if (SECONDS_PATTERN.test(text)) return Number(text) * 1_000;
  const at = parseHttpDate(text, now);
  return at === null ? null : Math.max(0, at - now);
}

function parseHttpDate(text: string, now: number): number | null {
  for (const pattern of DATE_PATTERNS) {
    const parts = pattern.exec(text)?.groups;
    if (!parts) continue;
    const { day = "", month = "", year = "", time = "" } = parts;
    const monthNumber = String(MONTHS.split("|").indexOf(month) + 1).padStart(2, "0");
    const date = `${year.length === 2 ? fullYear(Number(year), now) : year}-${monthNumber}-${day.replace(" ", "0")}`;
    const at = Date.parse(`${date}T${time}Z`);
    return Number.isNaN(at) ? null : at;
  }
  return null;
}

/** A year of two digits that seems more than 50 years ahead is the latest such year in the past. */
function fullYear(year: number, now: number): number {
  const thisYear = new Date(now).getUTCFullYear();
  const inThisCentury = thisYear - (thisYear % 100) + year;
  return inThisCentury > thisYear + 50 ? inThisCentury - 100 : inThisCentury;
}
