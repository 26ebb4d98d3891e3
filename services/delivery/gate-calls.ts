import { sendHints } from "../../shared/bus/hints.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { emptyGateCalls } from "../../shared/store/queue/gate-calls.ts";
import { emptyHostCalls, lookAtHosts } from "../../shared/store/queue/host-calls.ts";

const EVERY_MS = 500;
const HOSTS_EVERY_MS = 5_000;

/**
 * Calls the attempts that the gates of flow keys and hosts let start next, after changes that were made without the
 * locks of the gates. Every node looks; each row is taken by one node.
 */
export function createGateCalls({ db, bus }: Pick<Cell, "db" | "bus">) {
  let hostsAt = performance.now();
  return {
    everyMs: EVERY_MS,
    async tick(): Promise<void> {
      if (performance.now() >= hostsAt) {
        hostsAt = performance.now() + HOSTS_EVERY_MS;
        await lookAtHosts(db);
      }
      for (const empty of [emptyGateCalls, emptyHostCalls]) {
        for (let isMoreLeft = true; isMoreLeft; ) {
          const emptied = await empty(db);
          sendHints(bus, { owed: emptied.owed, freed: [] });
          isMoreLeft = emptied.isMoreLeft;
        }
      }
    },
  };
}
