import {
  type Static,
  type TObject,
  type TProperties,
  type TSchema,
  type TUnsafe,
  Type,
} from "@sinclair/typebox";
import { TypeCompiler, type ValueError, ValueErrorType } from "@sinclair/typebox/compiler";
import { type ApiError, invalidRequest, PARAM_LENGTH_MAX } from "../domain/errors.ts";

/** Makes a function that returns the value with the schema's type, or throws ApiError for its first violation. */
export function validatorOf<Schema extends TSchema>(schema: Schema): (value: unknown) => Static<Schema> {
  const compiled = TypeCompiler.Compile(schema);
  return (value) => {
    if (compiled.Check(value)) return value;
    const violation = compiled.Errors(value).First();
    throw violation === undefined ? invalidRequest("The body is not valid.") : refusalOf(violation);
  };
}

/** A string that is one of these words. A title makes it a named schema of the published document. */
export function wordOf<Word extends string>(
  words: readonly Word[],
  description: string,
  title?: string,
): TUnsafe<Word> {
  return Type.Unsafe<Word>(
    Type.Union(
      words.map((word) => Type.Literal(word)),
      { description, ...(title === undefined ? {} : { title }) },
    ),
  );
}

/** The names of a schema's fields, such as the query parameters that an operation takes. */
export function namesOf<Fields extends TProperties>(schema: TObject<Fields>): (keyof Fields & string)[] {
  return Object.keys(schema.properties);
}

/** The messages tell types and names, and no value: payloads and secrets must not get into errors. */
function refusalOf(violation: ValueError): ApiError {
  const param = paramOf(violation.path);
  const subject = param === "" ? "The body" : param;
  const at = param === "" ? undefined : param;
  switch (violation.type) {
    case ValueErrorType.ObjectRequiredProperty:
      return invalidRequest(`${subject} is required.`, at);
    case ValueErrorType.ObjectAdditionalProperties:
      return invalidRequest(`${subject} is not a known field.${hintAt(violation)}`, at);
    default:
      return invalidRequest(
        `${subject} must be ${expectationOf(violation.schema)}, not ${kindOf(violation.value, violation.schema)}.`,
        at,
      );
  }
}

/** `/retry_policy/max_attempts` becomes `retry_policy.max_attempts`, `/events/0` becomes `events[0]`. */
function paramOf(pointer: string): string {
  return pointer
    .split("/")
    .slice(1)
    .map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"))
    .reduce((path, step) => {
      if (/^[0-9]+$/.test(step) && path !== "") return `${path}[${step}]`;
      return path === "" ? step : `${path}.${step}`;
    }, "")
    .slice(0, PARAM_LENGTH_MAX);
}

/** Suggests run_at for `runAt`: the commonest mistake is another way of joining the same words. */
function hintAt({ path, schema }: ValueError): string {
  const known = Object.keys((schema.properties as Record<string, unknown> | undefined) ?? {});
  const given = plainName(path.slice(path.lastIndexOf("/") + 1));
  const meant = known.find((name) => plainName(name) === given);
  if (meant !== undefined) return ` Did you mean ${meant}?`;
  return known.length === 0 ? "" : ` Known are ${known.join(", ")}.`;
}

function plainName(name: string): string {
  return name.replaceAll(/[_\- ]/g, "").toLowerCase();
}

function expectationOf(schema: TSchema): string {
  if (Array.isArray(schema.anyOf)) {
    return `one of ${schema.anyOf.map((choice: TSchema) => String(choice.const ?? choice.type)).join(", ")}`;
  }
  switch (schema.type) {
    case "integer":
      return `an integer from ${schema.minimum} to ${schema.maximum}`;
    case "object":
      return "an object";
    case "array":
      return `an array of ${schema.minItems ?? 0} to ${schema.maxItems} entries`;
    default:
      return `a ${schema.type}`;
  }
}

function kindOf(value: unknown, schema: TSchema): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return schema.type === "array" ? `one of ${value.length}` : "an array";
  switch (typeof value) {
    case "number":
      if (schema.type !== "integer") return "a number";
      return Number.isInteger(value) ? "one outside of it" : "a number with a fraction";
    case "object":
      return "an object";
    case "string":
      return schema.anyOf === undefined ? "a string" : "another string";
    default:
      return `a ${typeof value}`;
  }
}
