import pino from "pino";
import { tellError } from "./error-text.ts";

/** The logger: the fields first, then a text that never varies. */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export type LogLevel = "debug" | "info" | "warn" | "error" | "silent";

/**
 * Writes one JSON line to stdout in each call, before the call returns. Worker transports and asynchronous destinations
 * would lose the last lines of a dying process, which matter most. An error in the field `err` is logged with its stack and
 * causes, and without the values that it quotes.
 */
export function createLog({ level, name }: { level: LogLevel; name: string }): Log {
  return pino({ level, name, serializers: { err: tellError } });
}
