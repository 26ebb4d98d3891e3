import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";
import { RawJson } from "../../../shared/client/index.ts";
import { type Input, type Session, UsageError } from "../command.ts";

export const PAYLOAD_OPTION = { value: "JSON", about: "a JSON object, @FILE for a file's, or - for stdin's" };

/** The payload as it is written, every digit included; undefined if none was given. Throws UsageError. */
export async function readPayload(input: Input, { stdin }: Session): Promise<RawJson | undefined> {
  const given = input.option("payload");
  if (given === undefined) return undefined;
  const json =
    given === "-" ? await text(stdin) : given.startsWith("@") ? readFileSync(given.slice(1), "utf8") : given;
  try {
    return new RawJson(json);
  } catch (error) {
    throw new UsageError(`--payload: ${error instanceof Error ? error.message : error}`);
  }
}
