import {
  type Static,
  type TObject,
  type TProperties,
  type TSchema,
  type TUnsafe,
  Type,
} from "@sinclair/typebox";
import {
  TypeCompiler,
  type ValueError,
  type ValueErrorIterator,
  ValueErrorType,
} from "@sinclair/typebox/compiler";
import { type ApiError, invalidRequest, PARAM_LENGTH_MAX } from "../domain/errors.ts";
import { didYouMean, findNearest } from "../domain/nearest.ts";

/** Makes a function that returns the value with the schema's type, or throws ApiError for its first violation. */
export function validatorOf<Schema extends TSchema>(schema: Schema): (value: unknown) => Static<Schema> {
  const compiled = TypeCompiler.Compile(schema);
  return (value) => {
    if (compiled.Check(value)) return value;
    const violation = compiled.Errors(value).First();
    if (violation === undefined) throw invalidRequest("The body is not valid.");
    const chosen = chosenErrors(violation);
    throw refusalOf(chosen?.First() ?? violation, chosen ?? compiled.Errors(value));
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

/** If a schema is a number or an object that may be null, any other value is judged as that number or object. */
function chosenErrors({ type, value, schema, errors }: ValueError): ValueErrorIterator | undefined {
  if (type !== ValueErrorType.Union || value === null) return undefined;
  const [first, second, ...more]: TSchema[] = schema.anyOf;
  const isOptional = second?.type === "null" && more.length === 0;
  return isOptional && (first?.type === "integer" || first?.type === "object") ? errors[0] : undefined;
}

/** The messages tell types and names, and no value: payloads and secrets must not get into errors. */
function refusalOf(violation: ValueError, all: Iterable<ValueError>): ApiError {
  const param = paramOf(violation.path);
  const subject = param === "" ? "The body" : param;
  const at = param === "" ? undefined : param;
  switch (violation.type) {
    case ValueErrorType.ObjectRequiredProperty:
      return invalidRequest(misspeltFor(violation, all) ?? `${subject} is required.`, at);
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
  return stepsOf(pointer)
    .reduce((path, step) => {
      if (/^[0-9]+$/.test(step) && path !== "") return `${path}[${step}]`;
      return path === "" ? step : `${path}.${step}`;
    }, "")
    .slice(0, PARAM_LENGTH_MAX);
}

/** Suggests run_at for `runAt`, and else names the fields that are known. */
function hintAt({ path, schema }: ValueError): string {
  const known = fieldsOf(schema);
  const meant = findNearest(lastStep(path), known);
  if (meant !== null) return didYouMean(meant);
  return known.length === 0 ? "" : ` Known are ${known.join(", ")}.`;
}

/** The most violations that are searched for a misspelt name of the missing field. */
const VIOLATIONS_MAX = 64;

/** The message about a required field that was given under a misspelt name; null if it was not. */
function misspeltFor(missing: ValueError, all: Iterable<ValueError>): string | null {
  const name = lastStep(missing.path);
  let count = 0;
  for (const { type, path, schema } of all) {
    if (++count > VIOLATIONS_MAX) break;
    if (type !== ValueErrorType.ObjectAdditionalProperties || !areSiblings(path, missing.path)) continue;
    const given = lastStep(path);
    if (!FIELD_NAME.test(given) || findNearest(given, fieldsOf(schema)) !== name) continue;
    return `${paramOf(path)} is not a known field.${didYouMean(name)} It is required.`;
  }
  return null;
}

/** The names of fields that a message may repeat with a guess. */
const FIELD_NAME = /^[\w -]{1,64}$/;

const fieldsOf = (schema: TSchema): string[] =>
  Object.keys((schema.properties as Record<string, unknown> | undefined) ?? {});

const stepsOf = (pointer: string): string[] =>
  pointer
    .split("/")
    .slice(1)
    .map((step) => step.replaceAll("~1", "/").replaceAll("~0", "~"));

const lastStep = (pointer: string): string => stepsOf(pointer).at(-1) ?? "";

const areSiblings = (one: string, other: string): boolean =>
  one.slice(0, one.lastIndexOf("/")) === other.slice(0, other.lastIndexOf("/"));

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
