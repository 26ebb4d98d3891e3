import { expect, test } from "bun:test";
import { messageOf, tellError } from "./error-text.ts";

const SECRET = "canary";
/** An error as the driver makes it from an error of Postgres. */
const refusal = (code: string, message: string) =>
  Object.assign(new Error(message), {
    name: "error",
    severity: "ERROR",
    code,
    detail: `Failing row contains (${SECRET}).`,
    where: `JSON data, line 1: ${SECRET}`,
    hint: SECRET,
    internalQuery: `SELECT '${SECRET}'`,
    table: "webhooks",
    constraint: "webhooks_url",
  });

test("an error of Postgres is told with its names and codes, and without the row", () => {
  const told = tellError(refusal("23514", 'new row for relation "webhooks" violates a check'));
  expect(told).toMatchObject({
    type: "Error",
    message: 'new row for relation "webhooks" violates a check',
    code: "23514",
    severity: "ERROR",
    table: "webhooks",
    constraint: "webhooks_url",
  });
  expect(told.stack).toContain("error-text.test.ts");
  expect(JSON.stringify(told)).not.toContain(SECRET);
});

test.each(["22P02", "22001", "P0001"])(
  "the message of %s, which quotes what was refused, is not told",
  (code) => {
    const told = tellError(refusal(code, `malformed array literal: "{${SECRET}}"\n    at ${SECRET}`));
    expect(told.message).toBe(`Postgres refused a value with SQLSTATE ${code}`);
    expect(told.stack).toContain("error-text.test.ts");
    expect(JSON.stringify(told)).not.toContain(SECRET);
  },
);

/** An error as the query builder makes it. */
class DrizzleQueryError extends Error {
  constructor(
    readonly query: string,
    readonly params: unknown[],
    override readonly cause: Error,
  ) {
    super(`Failed query: ${query}\nparams: ${params}`);
  }
}

test("an error of the query builder is told by its statement, without parameters and literals, and by its cause", () => {
  const query = `insert into "webhooks" ("url", "kind") values ($1, 'it''s ${SECRET}')`;
  const error = new DrizzleQueryError(query, [SECRET, `\n    at ${SECRET}`], refusal("22001", SECRET));
  const told = tellError(new Error("not written", { cause: error }));
  expect(told.cause).toMatchObject({
    type: "DrizzleQueryError",
    message: `Failed query: insert into "webhooks" ("url", "kind") values ($1, '...')`,
    cause: { code: "22001", table: "webhooks" },
  });
  expect(JSON.stringify(told)).not.toContain(SECRET);
  expect(messageOf(error)).not.toContain(SECRET);
});

test("other members of an error are not told, nor a thrown value that is no error", () => {
  const invalid = Object.assign(new TypeError("Invalid URL"), {
    input: `postgres://u:${SECRET}@host`,
    code: "ERR",
  });
  const several = new AggregateError([invalid, refusal("23505", "duplicate key")], "none answered");
  for (const thrown of [invalid, several, { url: SECRET }, SECRET]) {
    expect(JSON.stringify(tellError(thrown))).not.toContain(SECRET);
  }
  expect(tellError(several).errors).toMatchObject([{ type: "TypeError", code: "ERR" }, { code: "23505" }]);
});

test("a chain of causes ends, even one that leads back to itself", () => {
  const error = new Error("first");
  error.cause = error;
  expect(JSON.stringify(tellError(error)).match(/"first"/g)?.length).toBeLessThan(10);
});

test("an error with a changed message is told without its stack, which still begins with the old message", () => {
  const error = new Error(`it was ${SECRET}`);
  error.message = "it was something";
  expect(JSON.stringify(tellError(error))).not.toContain(SECRET);
});
