import type { Bus } from "../bus/bus.ts";
import type { Command, Hint, OwedAttempt } from "../bus/messages.ts";
import { flowClassOf } from "../domain/flow-class.ts";
import type { Environment, ProjectNo, Region } from "../domain/scope.ts";
import { HORIZON_MS } from "../domain/shard.ts";
import type { SettledDeliveries } from "../store/queue/delivery-settle.ts";
import type { FreedPermits, Settled } from "../store/queue/settle.ts";

/** What is owed, and where it is looked after. */
export type PlacedAttempt = OwedAttempt & { region: Region; shard: number };

/** Tells each shard, in one message, what a statement has made owed there and which permits it has given back. */
export function sendHints(
  bus: Bus,
  { owed, freed }: { owed: readonly PlacedAttempt[]; freed: readonly FreedPermits[] },
): void {
  const hints = new Map<string, Hint>();
  const hintTo = (region: Region, shard: number) => {
    const name = `${region}/${shard}`;
    const hint = hints.get(name) ?? { region, shard, owed: [], freed: [] };
    hints.set(name, hint);
    return hint;
  };
  for (const { region, shard, ...attempt } of owed) hintTo(region, shard).owed.push(attempt);
  for (const { projectNo, region, shard, returned } of freed) {
    hintTo(region, shard).freed.push({ projectNo, returned });
  }
  for (const hint of hints.values()) bus.sendHint(hint);
}

/** What settled jobs have made owed: retries, and deliveries of the events. The shard of a job is null if nobody knows it any more. */
export function owedBySettled(
  settlements: readonly {
    shard: number | null;
    projectNo: ProjectNo;
    environment: Environment;
    region: Region;
    jobId: string;
  }[],
  { items, deliveries }: Settled,
): PlacedAttempt[] {
  const owed: PlacedAttempt[] = [];
  for (const [index, { projectNo, environment, region, shard, jobId }] of settlements.entries()) {
    const item = items[index];
    if (item == null || item.nextRetryAt === null || shard === null) continue;
    const flowClass = flowClassOf("jobs", environment);
    owed.push({
      projectNo,
      flowClass,
      region,
      shard,
      id: jobId,
      attempt: item.attempt + 1,
      dueAt: item.nextRetryAt,
    });
  }
  for (const { projectNo, environment, region, shard, id, dueAt } of deliveries) {
    owed.push({
      projectNo,
      flowClass: flowClassOf("webhooks", environment),
      region,
      shard,
      id,
      attempt: 1,
      dueAt,
    });
  }
  return owed;
}

/** The same for settled deliveries: their retries. */
export function owedBySettledDeliveries(
  settlements: readonly {
    shard: number | null;
    projectNo: ProjectNo;
    environment: Environment;
    region: Region;
    deliveryId: string;
  }[],
  { items }: SettledDeliveries,
): PlacedAttempt[] {
  return settlements.flatMap(({ projectNo, environment, region, shard, deliveryId: id }, index) => {
    const item = items[index];
    if (item == null || item.nextAttemptAt === null || shard === null) return [];
    const flowClass = flowClassOf("webhooks", environment);
    return [
      { projectNo, flowClass, region, shard, id, attempt: item.attempt + 1, dueAt: item.nextAttemptAt },
    ];
  });
}

/** Tells the workers of jobs that were committed, one command for each project and region; later ones the sweep finds. */
export function sendCommands(bus: Bus, owed: readonly PlacedAttempt[], now: number): void {
  const commands = new Map<string, Command>();
  for (const { region, shard, projectNo, flowClass, id, attempt, dueAt } of owed) {
    if (dueAt > now + HORIZON_MS) continue;
    const place = `${projectNo}/${region}`;
    const command = commands.get(place) ?? { region, shard, projectNo, owed: [] };
    command.owed.push({ projectNo, flowClass, id, attempt, dueAt });
    commands.set(place, command);
  }
  for (const command of commands.values()) bus.sendCommand(command);
}
