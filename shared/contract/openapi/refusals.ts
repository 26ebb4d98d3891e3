import { type ErrorCode, STATUS_OF_CODE } from "../../domain/errors.ts";
import { type ErrorView, errorBodyOf, REQUEST_ID_EXAMPLE } from "../error.ts";
import { errorCodesOf, type Operation } from "../operations/operation.ts";
import { EXPLANATIONS } from "./explanations.ts";
import { headersOf } from "./headers.ts";
import type { Json, Schemas } from "./schemas.ts";

/** The refusals of one document. */
export interface Refusals {
  /** The refusals with which the operation can answer, by status. */
  responsesOf(operation: Operation): Json;
  /** The responses that operations refer to by name. */
  components: Json;
}

export function createRefusals(schemas: Schemas): Refusals {
  const components: Json = {};
  return {
    components,
    responsesOf(operation) {
      const byStatus = Map.groupBy(errorCodesOf(operation), (code) => STATUS_OF_CODE[code]);
      return Object.fromEntries(
        [...byStatus].map(([status, codes]) => {
          const { invalidExample } = operation;
          if (codes.includes("invalid_request") && invalidExample !== undefined) {
            const schema = schemas.refer(errorBodyOf(codes, { hasDetails: true }));
            const examples = { ...examplesOf(codes), invalid_request: { value: invalidExample } };
            return [status, describeRefusal(status, codes, schemas, { schema, examples })];
          }
          const name = codes.map(pascalCase).join("Or");
          const schema = schemas.refer(errorBodyOf(codes, { title: `${name}Refusal`, hasDetails: false }));
          const content = { schema, examples: examplesOf(codes) };
          components[name] ??= describeRefusal(status, codes, schemas, content);
          return [status, { $ref: `#/components/responses/${name}` }];
        }),
      );
    },
  };
}

function describeRefusal(status: number, codes: readonly ErrorCode[], schemas: Schemas, content: Json): Json {
  return {
    description: codes.map((code) => `- \`${code}\`: ${EXPLANATIONS[code].when}.`).join("\n"),
    headers: headersOf(status, schemas),
    content: { "application/json": content },
  };
}

function examplesOf(codes: readonly ErrorCode[]): Json {
  return Object.fromEntries(codes.map((code) => [code, { value: exampleOf(code) }]));
}

function exampleOf(code: ErrorCode): ErrorView {
  const { message, param } = EXPLANATIONS[code];
  return {
    error: { code, message, request_id: REQUEST_ID_EXAMPLE, ...(param === undefined ? {} : { param }) },
  };
}

function pascalCase(code: ErrorCode): string {
  return code
    .split("_")
    .map((word) => word.slice(0, 1).toUpperCase() + word.slice(1))
    .join("");
}
