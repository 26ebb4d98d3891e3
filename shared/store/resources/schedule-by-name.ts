import type { Scope } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";
import { lookAgain } from "../database/look-again.ts";
import type { KeyCause } from "./audit.ts";
import {
  changeFound,
  createSchedule,
  type DecideChange,
  lookByName,
  type ScheduleRow,
  type ScheduleToCreate,
} from "./schedules.ts";

export type PutSchedule =
  | { kind: "created" | "found"; schedule: ScheduleRow }
  /** The project has no room for a further active schedule. */
  | { kind: "limit_exceeded" };

/**
 * Makes the schedule of this name be as a client wants it: `create` makes the one that is missing, and `decide` says what becomes
 * of the one that is there. Each is one statement, and which of them is asked for follows from what is read: a request that
 * dies between the two has done nothing, and one that was done but not answered finds at its next try that nothing is left to do.
 * Of many that create at once the name lets one succeed, and the others find its schedule.
 */
export function putSchedule(
  db: Database,
  scope: Scope,
  name: string,
  { create, decide }: { create: () => ScheduleToCreate; decide: DecideChange },
  activeMax: number,
  cause: KeyCause,
): Promise<PutSchedule> {
  // Names are the customers' and stand in no log.
  return lookAgain("the schedule of a name", async () => {
    const found = await lookByName(db, scope, name);
    if (found !== null) {
      const changed = await changeFound(db, found, decide, activeMax, cause);
      // Its name stays as it is, so that nobody else can have taken it.
      return changed === null || changed === "name_taken" ? null : { kind: "found", schedule: changed };
    }
    const schedule = create();
    const outcome = await createSchedule(db, schedule, cause, null);
    switch (outcome) {
      case "created":
        return { kind: outcome, schedule: { ...schedule, revision: 0 } };
      case "limit_exceeded":
        return { kind: outcome };
      case "name_taken":
      case "key_taken":
        return null;
    }
  });
}
