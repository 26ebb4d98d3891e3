import { createLog } from "../../shared/platform/log.ts";
import { openDatabase, type PooledDatabase } from "../../shared/store/database/database.ts";

/** Many callers may wait for few connections, and a slow machine is no outage of Postgres. */
const CONNECT_TIMEOUT_MS = 20_000;

/** A service's database with more patience. A test that provokes errors need not log them. */
export function openTestDatabase(
  url: string,
  connections = 2,
  logLevel: "error" | "silent" = "error",
): PooledDatabase {
  const log = createLog({ level: logLevel, name: "test" });
  return openDatabase(url, { connections, log, connectTimeoutMs: CONNECT_TIMEOUT_MS });
}
