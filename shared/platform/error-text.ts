/**
 * What may be told of an error, wherever it becomes text. Postgres names the values that it refuses, and the query builder
 * carries the parameters of its statement along: customers' URLs and payloads, sealed secrets. So an error is told by what is
 * named here and by nothing else that it carries, be it in its message or in a member.
 */

export interface ToldError {
  type: string;
  message: string;
  /** Where it was thrown; without the message, which a stack begins with. */
  stack?: string;
  cause?: ToldError;
  /** Of an error that stands for several, the first few. */
  errors?: ToldError[];
  /** What says of an error of Postgres, or of the system, which one it is. */
  [member: string]: unknown;
}

/** Names and codes. Not `detail`, `where`, `hint` and `internalQuery`, which quote rows and statements. */
const TOLD_MEMBERS = [
  "code",
  "errno",
  "syscall",
  "severity",
  "schema",
  "table",
  "column",
  "dataType",
  "constraint",
  "routine",
];
const CAUSES_MAX = 5;
const ERRORS_MAX = 3;
const STATEMENT_CHARACTERS_MAX = 500;
/** Classes of SQLSTATE whose messages quote values: data exceptions, and what functions in the database raise. */
export const QUOTES_VALUES = /^(22|P0)/;

export function tellError(error: unknown, causesMax = CAUSES_MAX): ToldError {
  if (!(error instanceof Error)) return { type: typeof error, message: `${typeof error} thrown` };
  const told: ToldError = { type: error.constructor.name || error.name, message: messageOf(error) };
  for (const member of TOLD_MEMBERS) {
    const value = (error as unknown as Record<string, unknown>)[member];
    if (typeof value === "string" || typeof value === "number") told[member] = value;
  }
  const stack = framesOf(error);
  if (stack !== "") told.stack = stack;
  if (causesMax === 0) return told;
  if (error.cause !== undefined) told.cause = tellError(error.cause, causesMax - 1);
  if (error instanceof AggregateError) {
    told.errors = error.errors.slice(0, ERRORS_MAX).map((each) => tellError(each, causesMax - 1));
  }
  return told;
}

/** The message of an error, but for what it may quote. */
export function messageOf(error: Error): string {
  const { code, severity, query } = error as { code?: unknown; severity?: unknown; query?: unknown };
  // The query builder's: its message has the parameters behind the statement.
  if ("params" in error && typeof query === "string") {
    const statement = query.replace(/'(?:[^']|'')*'/g, "'...'");
    return `Failed query: ${statement.slice(0, STATEMENT_CHARACTERS_MAX)}`;
  }
  const isOfPostgres = typeof severity === "string" && typeof code === "string";
  if (isOfPostgres && QUOTES_VALUES.test(code)) return `Postgres refused a value with SQLSTATE ${code}`;
  return error.message;
}

/** The lines behind the message. Where the message was changed since, nobody knows where it ends. */
function framesOf({ stack = "", message }: Error): string {
  const begin = stack.indexOf(message);
  return begin < 0 ? "" : stack.slice(begin + message.length).trim();
}
