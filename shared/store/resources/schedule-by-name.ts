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
 * Gives the schedule of this name the state that a client wants: `create` makes a missing schedule, and `decide` answers the next
 * state of an existing one. A read chooses between the two, and either is one statement. A request that dies after the read has
 * done nothing, and a request that was done but not answered finds at its next try that nothing is left to do. If many requests
 * create at once, the name lets one succeed, and the others find its schedule.
 */
export function putSchedule(
  db: Database,
  scope: Scope,
  name: string,
  { create, decide }: { create: () => ScheduleToCreate; decide: DecideChange },
  activeMax: number,
  cause: KeyCause,
): Promise<PutSchedule> {
  // Names belong to the customers and are not logged.
  return lookAgain("the schedule of a name", async () => {
    const found = await lookByName(db, scope, name);
    if (found !== null) {
      const changed = await changeFound(db, found, decide, activeMax, cause);
      // The change leaves the name as it is, so another schedule cannot have taken it.
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
