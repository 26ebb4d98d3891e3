import { createLog } from "../../shared/platform/log.ts";
import { openDatabase, type PooledDatabase } from "../../shared/store/database/database.ts";

/** A crowd may wait for few connections, and a machine that is slow for a moment is no outage of Postgres. */
const CONNECT_TIMEOUT_MS = 20_000;

/** What a process of the service has of its database, but for its impatience. A test that provokes errors need not log them. */
export function openTestDatabase(
  url: string,
  connections = 2,
  logLevel: "error" | "silent" = "error",
): PooledDatabase {
  const log = createLog({ level: logLevel, name: "test" });
  return openDatabase(url, { connections, log, connectTimeoutMs: CONNECT_TIMEOUT_MS });
}
