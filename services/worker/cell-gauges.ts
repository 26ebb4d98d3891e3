import { environmentOfClass, FLOW_CLASSES, kindOf } from "../../shared/domain/flow-class.ts";
import { byLabel, single } from "../../shared/platform/metrics/metrics.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { type CellState, lookAtCell } from "../../shared/store/cell/cell.ts";

/** A look older than this is no longer shown: an old figure misleads more than a missing one. */
const SHOWN_MS_MAX = 60_000;

/** Shows the cell's figures that only the database knows. A tick looks once, or ends the showing if not `isShown`. */
export function createCellGauges({ db, metrics }: Pick<Cell, "db" | "metrics">): {
  tick(isShown: boolean): Promise<void>;
} {
  let seen: CellState | null = null;
  let seenAt = 0;
  const show = <Shown>(values: (state: CellState) => Shown[]) =>
    seen !== null && performance.now() < seenAt + SHOWN_MS_MAX ? values(seen) : [];
  metrics.permitsInUse.follow(() =>
    show(({ permitsInUse }) =>
      FLOW_CLASSES.map((flowClass) => {
        const labels = { kind: kindOf(flowClass), environment: environmentOfClass(flowClass) };
        return { labels, value: permitsInUse[flowClass] };
      }),
    ),
  );
  metrics.webhookDeliveriesDue.follow(() => show(({ webhookDeliveriesDue }) => single(webhookDeliveriesDue)));
  metrics.jobsDue.follow(() => show(({ jobsDue }) => single(jobsDue)));
  metrics.attemptsParked.follow(() => show(({ attemptsParked }) => [...byLabel("kind", attemptsParked)]));
  metrics.shardsUnowned.follow(() =>
    show(({ shardsUnowned }) =>
      shardsUnowned.map(({ region, count }) => ({ labels: { region }, value: count })),
    ),
  );
  metrics.holds.follow(() => show(({ holds }) => [...byLabel("kind", holds)]));
  metrics.runTablesReadySeconds.follow(() =>
    show(({ runTablesReadySeconds }) => single(runTablesReadySeconds)),
  );
  metrics.firingsOverdueSeconds.follow(() =>
    show(({ firingsOverdueSeconds }) => single(firingsOverdueSeconds)),
  );
  metrics.secretsKeyAgeSeconds.follow(() =>
    show(({ secretsKeyAgeSeconds: age }) => (age === null ? [] : [age])).flatMap(single),
  );
  metrics.nodes.follow(() =>
    show(({ nodes }) =>
      nodes.flatMap(({ kind, alive, silent }) => [
        { labels: { kind, state: "alive" }, value: alive },
        { labels: { kind, state: "silent" }, value: silent },
      ]),
    ),
  );
  return {
    async tick(isShown) {
      if (!isShown) seen = null;
      else {
        seen = await lookAtCell(db);
        seenAt = performance.now();
      }
    },
  };
}
