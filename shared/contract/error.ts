import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { type ApiError, type EntryError, type ErrorCode, STATUS_OF_CODE } from "../domain/errors.ts";
import { REQUEST_PREFIX } from "../domain/ids.ts";
import { idOf } from "./id.ts";
import { wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

const ALL_CODES = Object.keys(STATUS_OF_CODE) as ErrorCode[];
const ErrorCodeSchema = wordOf(ALL_CODES, "What is wrong; see the table of codes.", "ErrorCode");

const commonFields = {
  message: Type.String({ description: "For people; programs go by the code." }),
  request_id: idOf(REQUEST_PREFIX, "That of the answer's Request-Id header."),
  param: Type.Optional(
    Type.String({ description: "The path of the one input at fault, such as retry_policy.max_attempts." }),
  ),
};
const entryDetails = Type.Array(
  Type.Object(
    {
      index: Type.Integer({ minimum: 0 }),
      code: ErrorCodeSchema,
      message: Type.String(),
      param: Type.Optional(Type.String({ description: "Relative to the entry." })),
    },
    closed,
  ),
  { description: "One for every bad entry of a batch." },
);

export const ErrorBody = Type.Object(
  {
    error: Type.Object(
      { code: ErrorCodeSchema, ...commonFields, details: Type.Optional(entryDetails) },
      closed,
    ),
  },
  closed,
);

/** ErrorBody for an answer that can have only these codes. */
export function errorBodyOf(
  codes: readonly ErrorCode[],
  { title, hasDetails }: { title?: string; hasDetails: boolean },
): TSchema {
  const code = wordOf(codes, "What is wrong; see the table of codes.");
  const details = hasDetails ? { details: Type.Optional(entryDetails) } : {};
  return Type.Object(
    { error: Type.Object({ code, ...commonFields, ...details }, closed) },
    { ...closed, ...(title === undefined ? {} : { title }) },
  );
}

export const REQUEST_ID_EXAMPLE = "req_01m7y7qdvqxpr57wtk0fwtk03s";

export type ErrorView = Static<typeof ErrorBody>;

export function viewError(error: ApiError, requestId: string): ErrorView {
  const { code, message, param, details } = error;
  return {
    error: {
      code,
      message,
      request_id: requestId,
      ...(param === undefined ? {} : { param }),
      ...(details === undefined ? {} : { details: details.map(viewEntryError) }),
    },
  };
}

function viewEntryError({ index, code, message, param }: EntryError): EntryError {
  return { index, code, message, ...(param === undefined ? {} : { param }) };
}
