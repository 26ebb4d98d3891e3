import type { FailureKind } from "./failure.ts";
import { Sketch } from "./sketch.ts";

/** The target hosts of a stretch of time: how many runs each had, and what became of them. */

/** The most hosts that are shown: those with most failures. */
export const HOSTS_SHOWN_MAX = 20;
/**
 * The most hosts that are kept of a stretch. Stretches are added up and cut again, as in Agarwal et al.: "Mergeable Summaries",
 * PODS 2012. A host that is left out lacks at most a hundredth of the failures of each stretch that is cut. No number shown is
 * ever too high.
 */
export const HOSTS_KEPT_MAX = 100;

export interface HostFigures {
  runs: number;
  failed: number;
  /** How many failures there were of each kind. */
  kinds: Map<FailureKind, number>;
  durations: Sketch;
}

export interface ShownHost {
  host: string;
  runs: number;
  failed: number;
  durationP99Ms: number | null;
  commonestError: FailureKind;
}

/** A host as a row holds it: its name, runs, failures, the kinds of failures in turn with their counts, and the sketch in base64. */
type KeptHost = [string, number, number, (string | number)[], string];

export class Hosts {
  private readonly byName = new Map<string, HostFigures>();

  of(host: string): HostFigures {
    let figures = this.byName.get(host);
    if (figures === undefined) {
      figures = { runs: 0, failed: 0, kinds: new Map(), durations: new Sketch() };
      this.byName.set(host, figures);
    }
    return figures;
  }

  /** The hosts as text; null without any. At most HOSTS_KEPT_MAX are kept: those with most failures, then those with most runs. */
  encode(): string | null {
    if (this.byName.size === 0) return null;
    const kept = this.sorted().slice(0, HOSTS_KEPT_MAX);
    return JSON.stringify(
      kept.map(([host, { runs, failed, kinds, durations }]): KeptHost => {
        const sketch = durations.encode()?.toString("base64") ?? "";
        return [host, runs, failed, [...kinds].flat(), sketch];
      }),
    );
  }

  /** Adds the hosts of a text that `encode` made. */
  addEncoded(text: string | null): void {
    if (text === null) return;
    for (const [host, runs, failed, kinds, sketch] of JSON.parse(text) as KeptHost[]) {
      const figures = this.of(host);
      figures.runs += runs;
      figures.failed += failed;
      for (let at = 0; at < kinds.length; at += 2) {
        addFailures(figures, kinds[at] as FailureKind, kinds[at + 1] as number);
      }
      if (sketch !== "") figures.durations.addEncoded(Buffer.from(sketch, "base64"));
    }
  }

  /** The hosts at which runs failed, those with most failures first. */
  shown(): ShownHost[] {
    // A period may have ten thousand hosts. Most of them fail less often than the last of the list so far, and are passed over.
    const first: [string, HostFigures][] = [];
    for (const host of this.byName) {
      const last = first[HOSTS_SHOWN_MAX - 1];
      if (host[1].failed === 0 || (last !== undefined && inOrder(last, host) < 0)) continue;
      const place = first.findIndex((other) => inOrder(host, other) < 0);
      first.splice(place === -1 ? first.length : place, 0, host);
      first.length = Math.min(first.length, HOSTS_SHOWN_MAX);
    }
    return first.map(([host, { runs, failed, kinds, durations }]) => ({
      ...{ host, runs, failed },
      durationP99Ms: durations.quantile(0.99),
      commonestError: commonestOf(kinds),
    }));
  }

  private sorted(): [string, HostFigures][] {
    return [...this.byName].sort(inOrder);
  }
}

const inOrder = ([oneName, one]: [string, HostFigures], [otherName, other]: [string, HostFigures]): number =>
  other.failed - one.failed || other.runs - one.runs || (oneName < otherName ? -1 : 1);

export function addFailures({ kinds }: HostFigures, kind: FailureKind, count: number): void {
  kinds.set(kind, (kinds.get(kind) ?? 0) + count);
}

/** The commonest kind. Of equally common kinds it is the first in the alphabet. */
function commonestOf(kinds: ReadonlyMap<FailureKind, number>): FailureKind {
  const [first] = [...kinds].sort(([one, a], [other, b]) => b - a || (one < other ? -1 : 1));
  return first?.[0] ?? "other";
}
