import pino from "pino";
import { tellError } from "./error-text.ts";

/** What code outside this folder knows of logging: the fields first, then a sentence that never varies. */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

export type LogLevel = "debug" | "info" | "warn" | "error" | "silent";

/**
 * One JSON line on stdout for each call, written before the call returns: worker transports and asynchronous
 * destinations lose the last lines of a process that dies, and those are the ones that are wanted. An error
 * goes under the field `err`, which is logged with its stack and causes, and without the values that it was about.
 */
export function createLog({ level, name }: { level: LogLevel; name: string }): Log {
  return pino({ level, name, serializers: { err: tellError } });
}
