import { sendHints } from "../../shared/bus/hints.ts";
import type { Cell } from "../../shared/process/cell.ts";
import type { OnCalled } from "../../shared/store/queue/claim.ts";
import { emptyGateCalls } from "../../shared/store/queue/gate-calls.ts";
import { emptyHostCalls, lookAtHosts } from "../../shared/store/queue/host-calls.ts";
import { openLeftHosts } from "../../shared/store/resources/target-hosts.ts";

const EVERY_MS = 500;
const HOSTS_EVERY_MS = 5_000;

/**
 * Calls the attempts that the gates of flow keys and hosts let start next, after changes that were made without the
 * locks of the gates. Every node looks; each row is taken by one node. What fails keeps nothing else from being done.
 */
export function createGateCalls({ db, bus }: Pick<Cell, "db" | "bus">) {
  const onCalled: OnCalled = (owed) => sendHints(bus, { owed, freed: [] });
  let hostsAt = performance.now();
  async function lookNowAndThen(): Promise<void> {
    if (performance.now() < hostsAt) return;
    hostsAt = performance.now() + HOSTS_EVERY_MS;
    await openLeftHosts(db);
    await lookAtHosts(db);
  }
  return {
    everyMs: EVERY_MS,
    async tick(): Promise<void> {
      const ended = [
        ...(await Promise.allSettled([lookNowAndThen()])),
        ...(await Promise.allSettled([emptyGateCalls(db, onCalled)])),
        ...(await Promise.allSettled([emptyHostCalls(db, onCalled)])),
      ];
      const failed = ended.find((each) => each.status === "rejected");
      if (failed !== undefined) throw failed.reason;
    },
  };
}
