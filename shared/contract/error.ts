import { type Static, Type } from "@sinclair/typebox";
import { type ApiError, type EntryError, type ErrorCode, STATUS_OF_CODE } from "../domain/errors.ts";
import { wordOf } from "./validator.ts";

const ErrorCodeSchema = wordOf(
  Object.keys(STATUS_OF_CODE) as ErrorCode[],
  "What is wrong; see the table of codes.",
);

export const ErrorBody = Type.Object(
  {
    error: Type.Object(
      {
        code: ErrorCodeSchema,
        message: Type.String(),
        request_id: Type.String(),
        param: Type.Optional(Type.String({ description: "The path of the one input at fault." })),
        details: Type.Optional(
          Type.Array(
            Type.Object(
              {
                index: Type.Integer({ minimum: 0 }),
                code: ErrorCodeSchema,
                message: Type.String(),
                param: Type.Optional(Type.String({ description: "Relative to the entry." })),
              },
              { additionalProperties: false },
            ),
            { description: "One for every bad entry of a batch." },
          ),
        ),
      },
      { additionalProperties: false },
    ),
  },
  { additionalProperties: false },
);
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
