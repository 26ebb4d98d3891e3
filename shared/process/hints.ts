import type { Bus } from "../bus/bus.ts";
import type { Command, Hint, OwedAttempt } from "../bus/messages.ts";
import type { Environment, ProjectNo, Region } from "../domain/scope.ts";
import { HORIZON_MS } from "../domain/shard.ts";
import type { Settled } from "../store/settle.ts";

/** An attempt that was settled, and the shard that looks after its job; null if nobody knows it any more. */
export interface SettledAttempt {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  shard: number | null;
  jobId: string;
  attempt: number;
}

/** Tells each shard, in one message, what a settle statement has made owed and which permits it has given back. */
export function sendHints(bus: Bus, attempts: readonly SettledAttempt[], { items, freed }: Settled): void {
  const hints = new Map<string, Hint>();
  const hintTo = (region: Region, shard: number) => {
    const name = `${region}/${shard}`;
    const hint = hints.get(name) ?? { region, shard, owed: [], freed: [] };
    hints.set(name, hint);
    return hint;
  };
  for (const [index, { projectNo, environment, region, shard, jobId, attempt }] of attempts.entries()) {
    const dueAt = items[index]?.nextRetryAt ?? null;
    if (dueAt === null || shard === null) continue;
    hintTo(region, shard).owed.push({ projectNo, environment, jobId, attempt: attempt + 1, dueAt });
  }
  for (const { projectNo, region, shard, returned } of freed) {
    hintTo(region, shard).freed.push({ projectNo, returned });
  }
  for (const hint of hints.values()) bus.sendHint(hint);
}

/** Tells the workers of jobs that were committed, one command for each project and region; later ones the sweep finds. */
export function sendCommands(
  bus: Bus,
  owed: readonly (OwedAttempt & { region: Region; shard: number })[],
  now: number,
): void {
  const commands = new Map<string, Command>();
  for (const { region, shard, projectNo, environment, jobId, attempt, dueAt } of owed) {
    if (dueAt > now + HORIZON_MS) continue;
    const place = `${projectNo}/${region}`;
    const command = commands.get(place) ?? { region, shard, projectNo, owed: [] };
    command.owed.push({ projectNo, environment, jobId, attempt, dueAt });
    commands.set(place, command);
  }
  for (const command of commands.values()) bus.sendCommand(command);
}
