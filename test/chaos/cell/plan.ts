import { Random } from "../../simulation/cell/random.ts";
import { FAULTS } from "./faults.ts";

/** The decisions of a seed. The course of a run depends on the machine as well, so a seed does not repeat a run. */
export interface Plan {
  seed: number;
  isPooled: boolean;
  steps: PlannedFault[];
}

export interface PlannedFault {
  /** Milliseconds after the beginning of the load. */
  at: number;
  fault: string;
  forMs: number;
  /** Two numbers in [0, 1): one chooses the part that the fault strikes, the other decides everything else. */
  part: number;
  chance: number;
}

const FIRST_FAULT_MS = 1_000;

/**
 * Each kind of fault has its turn before any has a second one. `everyMs` is the mean time between the beginnings of two
 * faults. Many last longer than that, so that several are under way at once.
 */
export function makePlan(seed: number, { faultsMs, everyMs }: { faultsMs: number; everyMs: number }): Plan {
  const random = new Random(seed, "chaos");
  const isPooled = random.chance(0.75);
  const steps: PlannedFault[] = [];
  let deck = random.shuffle(FAULTS);
  for (let at = FIRST_FAULT_MS; at < faultsMs; at += random.between(0, 2 * everyMs)) {
    if (deck.length === 0) deck = random.shuffle(FAULTS);
    const fault = deck.shift();
    if (fault === undefined) break;
    const { least, end } = fault.lastsMs;
    const forMs = Math.round(random.between(least, end));
    steps.push({ at: Math.round(at), fault: fault.name, forMs, part: random.next(), chance: random.next() });
  }
  return { seed, isPooled, steps };
}
