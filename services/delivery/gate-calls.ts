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
 * locks of the gates. Every node looks; each row is taken by one node. A step that fails does not keep the
 * next one from being taken.
 */
export function createGateCalls({ db, bus }: Pick<Cell, "db" | "bus">) {
  const onCalled: OnCalled = (owed) => sendHints(bus, { owed, freed: [] });
  let hostsAt = performance.now();
  return {
    everyMs: EVERY_MS,
    async tick(): Promise<void> {
      const looksAtHosts = performance.now() >= hostsAt;
      if (looksAtHosts) hostsAt = performance.now() + HOSTS_EVERY_MS;
      const steps = [
        ...(looksAtHosts ? [() => openLeftHosts(db), () => lookAtHosts(db)] : []),
        () => emptyGateCalls(db, onCalled),
        () => emptyHostCalls(db, onCalled),
      ];
      const errors: unknown[] = [];
      for (const step of steps) await step().catch((error) => errors.push(error));
      if (errors.length > 0) throw errors[0];
    },
  };
}
