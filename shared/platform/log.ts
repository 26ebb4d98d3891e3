import { isatty } from "node:tty";
import pino from "pino";
import { tellError } from "./error-text.ts";
import { humanLine } from "./human-lines.ts";

/** The logger: the fields first, then a text that never varies. */
export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** The logger of a process. */
export interface ProcessLog extends Log {
  /** Writes the lines of `act` in one write, which costs less than a write for each. */
  together(act: () => void): void;
}

export type LogLevel = "debug" | "info" | "warn" | "error" | "silent";
/** JSON for programs, or lines for a person. */
export type LogFormat = "json" | "human";

/**
 * Writes one line to stdout in each call, before the call returns. Worker transports and asynchronous destinations would
 * lose the last lines of a dying process, which matter most. An error in the field `err` is logged with its stack and
 * causes, and without the values that it quotes. The format null stands for human lines on a terminal, and JSON elsewhere.
 */
export function createLog({
  level,
  name,
  format = "json",
}: {
  level: LogLevel;
  name: string;
  format?: LogFormat | null;
}): ProcessLog {
  const stdout = pino.destination({ fd: process.stdout.fd, sync: true });
  let gathered: string | null = null;
  const write = (line: string) => {
    if (gathered === null) stdout.write(line);
    else gathered += line;
  };
  const isForPerson = (format ?? (isatty(process.stdout.fd) ? "human" : "json")) === "human";
  // Outside of a terminal stdout has no such function.
  const hasColours = isForPerson && (process.stdout.hasColors?.() ?? false);
  const lines = { write: isForPerson ? (line: string) => write(humanLine(line, hasColours)) : write };
  const logger = pino({ level, name, serializers: { err: tellError } }, lines);
  return {
    debug: (fields, message) => logger.debug(fields, message),
    info: (fields, message) => logger.info(fields, message),
    warn: (fields, message) => logger.warn(fields, message),
    error: (fields, message) => logger.error(fields, message),
    together(act) {
      gathered ??= "";
      try {
        act();
      } finally {
        const text = gathered;
        gathered = null;
        if (text) stdout.write(text);
      }
    },
  };
}
