import { ConfigError, readConfig } from "../../shared/platform/config.ts";
import { isLockTimeout } from "../../shared/store/database.ts";
import { migrate } from "../../shared/store/migrate.ts";
import { faultText, findDatabaseUrl } from "./cell.ts";
import { Refusal } from "./command.ts";

/** `npm run migrate`: brings the schema of DATABASE_URL up to date. Safe while services run, and to run again. */

/** A migration gives way to traffic that holds a table it needs, and the next try may find it free. */
const TRIES = 10;
const PAUSE_MS = 3_000;

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
  for (let attempt = 1; ; attempt++) {
    try {
      return await migrate(url);
    } catch (error) {
      if (attempt === TRIES || !isLockTimeout(error)) throw error;
      process.stderr.write(`a table is in use; trying again in ${PAUSE_MS} ms\n`);
      await Bun.sleep(PAUSE_MS);
    }
  }
}
