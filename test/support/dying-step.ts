import { takeStep } from "../../shared/store/insights/roll-up.ts";
import { outsetOf } from "../../shared/store/insights/test-support.ts";
import { openTestDatabase } from "./database.ts";

/**
 * A process that takes a step of the roll-up and is killed right before, or right after, it has run the statement that is named:
 * `bun dying-step.ts <database url> before|after <statement>`.
 */
const [url = "", when, statement] = process.argv.slice(2);
const db = openTestDatabase(url, 1);
const die = () => process.kill(process.pid, "SIGKILL");
const run: typeof db.run = async (name, text, values) => {
  if (name === statement && when === "before") die();
  const rows = await db.run<never>(name, text, values);
  if (name === statement) die();
  return rows;
};
await takeStep({ ...db, run }, await outsetOf(db));
throw new Error(`the step ended without ${statement}`);
