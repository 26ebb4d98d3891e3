/**
 * Turns errors into text without customers' data. Postgres quotes the values that it refuses, and the query builder adds the
 * parameters of its statement: customers' URLs and payloads, sealed secrets. So only the members listed here are told, and
 * messages that may quote values are replaced.
 */

export interface ToldError {
  type: string;
  message: string;
  /** The stack without the message that it begins with. */
  stack?: string;
  cause?: ToldError;
  /** The first few errors of an AggregateError. */
  errors?: ToldError[];
  /** The TOLD_MEMBERS, which say which error of Postgres or of the system it is. */
  [member: string]: unknown;
}

/** Names and codes. `detail`, `where`, `hint` and `internalQuery` are left out: they quote rows and statements. */
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
/** Classes of SQLSTATE whose messages quote values: data exceptions, and errors raised by functions in the database. */
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

/** The message of an error, without the values that it may quote. */
export function messageOf(error: Error): string {
  const { code, severity, query } = error as { code?: unknown; severity?: unknown; query?: unknown };
  // In an error of the query builder the parameters follow the statement.
  if ("params" in error && typeof query === "string") {
    const statement = query.replace(/'(?:[^']|'')*'/g, "'...'");
    return `Failed query: ${statement.slice(0, STATEMENT_CHARACTERS_MAX)}`;
  }
  const isOfPostgres = typeof severity === "string" && typeof code === "string";
  if (isOfPostgres && QUOTES_VALUES.test(code)) return `Postgres refused a value with SQLSTATE ${code}`;
  return error.message;
}

/** The fault that Postgres or the connection reports. The text tells nothing of a statement or its values. */
export function faultText(error: unknown): string {
  let root = error;
  while (root instanceof Error && root.cause !== undefined) root = root.cause;
  if (!(root instanceof Error)) return String(root);
  // A refused connection to a name with several addresses has a code, but no message.
  return messageOf(root) || String((root as { code?: unknown }).code ?? root.name);
}

/** The lines of the stack after the message; none if the message was changed since, because then its end is unknown. */
function framesOf({ stack = "", message }: Error): string {
  const begin = stack.indexOf(message);
  return begin < 0 ? "" : stack.slice(begin + message.length).trim();
}
