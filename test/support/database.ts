import { createLog } from "../../shared/platform/log.ts";
import { openDatabase, type PooledDatabase } from "../../shared/store/database/database.ts";

/** Many callers may wait for few connections, and a slow machine is no outage of Postgres. */
const CONNECT_TIMEOUT_MS = 60_000;

/** Settings of a session whose statements and transactions may wait for as long as a test lets them wait for a lock. */
export const PATIENT = "-c statement_timeout=60s -c idle_in_transaction_session_timeout=60s";
const PATIENT_ANSWER_MS = 70_000;

/** A service's database with more patience. A test that provokes errors need not log them. */
export function openTestDatabase(
  url: string,
  connections = 2,
  logLevel: "error" | "silent" = "error",
): PooledDatabase {
  const log = createLog({ level: logLevel, name: "test" });
  return openDatabase(url, { connections, log, connectTimeoutMs: CONNECT_TIMEOUT_MS });
}

/** The same, with the settings of PATIENT. Its errors are not logged. */
export function openPatientDatabase(url: string, connections: number): PooledDatabase {
  const log = createLog({ level: "silent", name: "test" });
  const patient = new URL(url);
  patient.searchParams.set("options", PATIENT);
  return openDatabase(patient.href, {
    ...{ connections, log },
    ...{ connectTimeoutMs: CONNECT_TIMEOUT_MS, answerTimeoutMs: PATIENT_ANSWER_MS },
  });
}
