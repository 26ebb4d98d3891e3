import { Counter, Gauge, Histogram, type Registry } from "prom-client";

/** A number that only grows. */
export interface Count {
  inc(by?: number): void;
}

/** A distribution of values. */
export interface Spread {
  observe(value: number): void;
}

export type Labels<Name extends string> = Readonly<Record<Name, string>>;

/** The members of a metric, one for each combination of labels. Finding a member costs more than counting in it, so keep it. */
export interface Members<Name extends string, Member> {
  /** Shows the member from now on, at zero: if its series began with the first event, a rate would miss that event. */
  of(labels: Labels<Name>): Member;
}

/** A metric whose values are kept elsewhere and read whenever it is shown. */
export interface Followed<Name extends string> {
  /** Sets how the values are read. Before this call the metric has no values. */
  follow(read: () => Iterable<{ labels: Labels<Name>; value: number }>): void;
}

/** The metrics of one process, each with its labels. */
export class Families {
  constructor(
    private readonly prefix: string,
    private readonly registry: Registry,
  ) {}

  counts<Name extends string = never>(
    name: string,
    help: string,
    labelNames: readonly Name[] = [],
  ): Members<Name, Count> {
    const counter = new Counter<Name>(this.about(name, help, labelNames));
    return {
      of(labels) {
        const member = labelNames.length === 0 ? counter : counter.labels(labels);
        member.inc(0);
        return member;
      },
    };
  }

  /** `bounds` are the upper ends of the buckets, the least first. */
  spreads<Name extends string>(
    name: string,
    help: string,
    labelNames: readonly Name[],
    bounds: readonly number[],
  ): Members<Name, Spread> {
    const histogram = new Histogram<Name>({ ...this.about(name, help, labelNames), buckets: [...bounds] });
    const shown = new Set<string>();
    return {
      of(labels) {
        const key = JSON.stringify(labels);
        // A second `zero` would reset the member.
        if (!shown.has(key)) histogram.zero(labels);
        shown.add(key);
        return histogram.labels(labels);
      },
    };
  }

  levels<Name extends string = never>(
    name: string,
    help: string,
    labelNames: readonly Name[] = [],
  ): Followed<Name> {
    let read: Read<Name> = () => [];
    new Gauge<Name>({
      ...this.about(name, help, labelNames),
      collect() {
        this.reset();
        // A gauge without labels would show 0 while its value is unknown.
        if (labelNames.length === 0) this.remove();
        for (const { labels, value } of read()) this.set(labels, value);
      },
    });
    return {
      follow(itsRead) {
        read = itsRead;
      },
    };
  }

  /** A metric that only grows and is counted elsewhere. */
  followedCounts<Name extends string>(
    name: string,
    help: string,
    labelNames: readonly Name[],
  ): Followed<Name> {
    let read: Read<Name> = () => [];
    new Counter<Name>({
      ...this.about(name, help, labelNames),
      collect() {
        this.reset();
        for (const { labels, value } of read()) this.inc(labels, value);
      },
    });
    return {
      follow(itsRead) {
        read = itsRead;
      },
    };
  }

  private about<Name extends string>(name: string, help: string, labelNames: readonly Name[]) {
    return { name: this.prefix + name, help, labelNames: [...labelNames], registers: [this.registry] };
  }
}

type Read<Name extends string> = () => Iterable<{ labels: Labels<Name>; value: number }>;
