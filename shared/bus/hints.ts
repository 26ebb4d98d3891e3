import type { OwedAttempt, OwedWork, Placed } from "../domain/owed.ts";
import { HOME_REGION } from "../domain/plan.ts";
import type { ProjectNo, Region } from "../domain/scope.ts";
import { HORIZON_MS } from "../domain/shard.ts";
import type { Bus } from "./bus.ts";
import type { Command, Hint } from "./messages.ts";

/** Turns the work that a statement has left to others into messages. The sweeps find the work of lost messages. */

/** Tells each shard, in one message, what is owed there and which permits have come back. */
export function sendHints(bus: Bus, { owed, freed, begun = [] }: OwedWork): void {
  const hints = new Map<string, Hint>();
  const hintTo = (region: Region, shard: number) => {
    const name = `${region}/${shard}`;
    const hint = hints.get(name) ?? { region, shard, owed: [], freed: [] };
    hints.set(name, hint);
    return hint;
  };
  for (const { region, shard, ...attempt } of owed) hintTo(region, shard).owed.push(attempt);
  for (const { region, shard, ...permits } of freed) hintTo(region, shard).freed.push(permits);
  for (const { region, shard, ...attempt } of begun) {
    const hint = hintTo(region, shard);
    hint.begun ??= [];
    hint.begun.push(attempt);
  }
  for (const hint of hints.values()) bus.sendHint(hint);
}

/**
 * Tells the workers of attempts that were asked for and committed, one command for each project and region. Attempts
 * beyond the workers' horizon are left out, since the sweeps find them.
 */
export function sendCommands(bus: Bus, owed: readonly Placed<OwedAttempt>[], now: number): void {
  const commands = new Map<string, Command>();
  for (const attempt of owed) {
    const { projectNo, region, shard, dueAt } = attempt;
    if (dueAt > now + HORIZON_MS) continue;
    const place = `${projectNo}/${region}`;
    const command = commands.get(place) ?? { region, shard, projectNo, owed: [] };
    command.owed.push(attempt);
    commands.set(place, command);
  }
  for (const command of commands.values()) bus.sendCommand(command);
}

/**
 * Tells the worker that a schedule of the project may fire sooner than was known, or that a client has asked for a bulk
 * operation or aborted one. The worker looks for all of these.
 */
export function sendProjectChange(bus: Bus, projectNo: ProjectNo, shard: number): void {
  bus.sendCommand({ region: HOME_REGION, shard, projectNo, owed: [] });
}
