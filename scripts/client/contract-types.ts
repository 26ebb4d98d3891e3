import { Event } from "../../shared/contract/event.ts";
import { OPERATIONS } from "../../shared/contract/operations/all.ts";
import { AdvanceView, ClockView } from "../../shared/contract/test-clock.ts";
import { STATUS_OF_CODE } from "../../shared/domain/errors.ts";
import { API_VERSIONS } from "../../shared/domain/version.ts";
import { createTypeWriter, type Schema } from "./type-writer.ts";

/**
 * The types that the client has from the contract and the domain, as one module that imports nothing. The types have the
 * same names and meaning as there; `test/client/package/types.test.ts` checks that.
 */
export function writeContractTypes(): string {
  const writer = createTypeWriter();
  const operations = Object.entries(OPERATIONS).map(([id, { query, body, response }]) => {
    const given = body === null ? "never" : writer.typeOf(body.schema as Schema);
    const members = `query: ${writer.typeOf(query as Schema)}; body: ${given}; response: ${writer.typeOf(response.schema as Schema)}`;
    return `${id}: { ${members} };\n`;
  });
  const event = writer.typeOf(Event as Schema);
  const [clock, advanced] = [ClockView, AdvanceView].map((view) => writer.typeOf(view as Schema));
  const words = (list: readonly string[]) => list.map((word) => JSON.stringify(word)).join(" | ");
  return `${writer.declarations}
export interface Operations {
${operations.join("")}}
export type OperationId = keyof Operations;
export type QueryOf<Id extends OperationId> = Operations[Id]["query"];
export type BodyOf<Id extends OperationId> = Operations[Id]["body"];
export type ResponseOf<Id extends OperationId> = Operations[Id]["response"];
export type EventView = ${event};
export type ClockView = ${clock};
export type AdvanceView = ${advanced};
export interface ListView<Item> {
  data: Item[];
  next_cursor: string | null;
}
export type ErrorCode = ${words(Object.keys(STATUS_OF_CODE))};
export interface EntryError {
  index: number;
  code: ErrorCode;
  message: string;
  param?: string;
}
export type ApiVersion = ${words(API_VERSIONS)};
`;
}
