import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { HOME_REGION } from "../../shared/domain/plan.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { ShardHost } from "./shard-host.ts";

const ROUNDS = 300;
const MS_MAX = 300;
const WORKER = 1;
const DELIVERY = 2;

/**
 * Hands made-up jobs to a made-up delivery node, over a bus of its own, so that the code is compiled when the first job comes.
 * Postgres is not asked: the worker's first sweeps prepare its statements.
 */
export async function rehearseWorker(cell: Cell): Promise<void> {
  const log = createLog({ level: "silent", name: "rehearsal" });
  const bus = createInProcessBus(log);
  const host = new ShardHost(
    { ...cell, bus, log, metrics: createMetrics() },
    { nodeId: WORKER, isTrusted: () => true, onChange: () => undefined },
  );
  const place = { region: HOME_REGION, shard: 0 };
  host.add([{ ...place, epoch: 1 }]);
  bus.consumeCommands([HOME_REGION], ({ region, shard, owed }) => host.learn(region, shard, owed));
  bus.onDue(DELIVERY, ({ region, items }) => {
    const granted = items.map(({ projectNo, shard, id, attempt }) => {
      return { projectNo, shard, id, attempt, answer: { kind: "granted" as const } };
    });
    bus.sendAnswers(WORKER, { deliveryNodeId: DELIVERY, region, room: 1_000, items: granted });
  });
  bus.onAnswers(WORKER, (answers) => host.hearAnswers(answers));
  const ids = createIdSource(randomBytes);
  const endAt = performance.now() + MS_MAX;
  for (let round = 0; round < ROUNDS && performance.now() < endAt; round++) {
    host.hearBeat({ nodeId: DELIVERY, regions: [HOME_REGION], room: 1_000 });
    const now = cell.clock.now();
    // One attempt is due at once, and one waits on the wheel.
    const owed = [now - 1, now + 1].map((dueAt) => {
      const flowClass = "production jobs" as const;
      return { projectNo: 1, flowClass, id: ids.next(JOB_PREFIX, now), attempt: 1, dueAt };
    });
    bus.sendCommand({ ...place, projectNo: 1, owed });
    await new Promise(setImmediate);
    host.advance(now + 2);
    host.send(now + 2);
    await new Promise(setImmediate);
    await new Promise(setImmediate);
  }
  await bus.close();
}
