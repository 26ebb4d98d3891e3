import { ConfigError, readConfig } from "../../shared/platform/config.ts";
import { faultText } from "../../shared/platform/error-text.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { isDatabaseFault, isLockedOut } from "../../shared/store/database/database.ts";
import { findDatabaseUrl } from "./cell.ts";
import { Refusal } from "./command.ts";

/**
 * `npm run migrate`: brings the schema of DATABASE_URL up to date. It is safe while services run, and to run again.
 * With `--wait` it waits without end for a Postgres that cannot be reached.
 */

/** A migration gives way to traffic that holds a table which it needs. The next try may find the table free. */
const TRIES = 10;
const PAUSE_MS = 3_000;

const waits = process.argv.includes("--wait");
try {
  await migrateWithPatience(findDatabaseUrl(readConfig(process.env, "admin")));
  process.stdout.write("the schema is up to date\n");
} catch (error) {
  const expected = error instanceof Refusal || error instanceof ConfigError;
  const told = expected ? error.message : `the schema could not be brought up to date: ${faultText(error)}`;
  process.stderr.write(`${told}\n`);
  process.exitCode = 1;
}

async function migrateWithPatience(url: string): Promise<void> {
  let lockedOut = 0;
  let told = "";
  for (;;) {
    try {
      return await migrate(url);
    } catch (error) {
      if (isLockedOut(error) && ++lockedOut < TRIES) {
        process.stderr.write(`a table is in use; trying again in ${PAUSE_MS} ms\n`);
      } else if (waits && !isLockedOut(error) && isDatabaseFault(error)) {
        const why = faultText(error);
        if (why !== told) process.stderr.write(`waiting for Postgres: ${why}\n`);
        told = why;
      } else throw error;
      await Bun.sleep(PAUSE_MS);
    }
  }
}
