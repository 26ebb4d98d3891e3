/** Something that only ever happens more often. */
export interface Count {
  inc(by?: number): void;
}

/** Something of which the distribution matters. */
export interface Spread {
  observe(value: number): void;
}

export type Labels<Name extends string> = Readonly<Record<Name, string>>;

/** The members of a metric, one for each combination of labels. To find one costs more than to count in it. */
export interface Members<Name extends string, Member> {
  /** It is shown from now on: a rate over a series that appears with its first event misses that event. */
  of(labels: Labels<Name>): Member;
}

/** A metric whose values somebody else keeps: they are read each time that it is shown. */
export interface Followed<Name extends string> {
  /** Until somebody has said how to read it, it has no values. */
  follow(read: () => Iterable<{ labels: Labels<Name>; value: number }>): void;
}

/**
 * The metrics of one process in Prometheus' text format (version 0.0.4). Every count is in the way of a request or of an
 * attempt, so it is an addition to a number that its owner holds, and whatever else there is to do waits for the reading.
 */
export class Families {
  private readonly all: Family[] = [];

  constructor(private readonly prefix: string) {}

  counts<Name extends string = never>(name: string, help: string): Members<Name, Count> {
    return this.members(name, "counter", help, () => {
      let total = 0;
      return {
        inc: (by = 1) => {
          total += by;
        },
        samples: () => [{ suffix: "", labels: {}, value: total }],
      };
    });
  }

  /** `bounds` are the upper ends of the buckets, the least first. */
  spreads<Name extends string>(name: string, help: string, bounds: readonly number[]): Members<Name, Spread> {
    return this.members(name, "histogram", help, () => createSpread(bounds));
  }

  levels<Name extends string>(name: string, help: string): Followed<Name> {
    return this.followed(name, "gauge", help);
  }

  /** What only grows, counted elsewhere. */
  followedCounts<Name extends string>(name: string, help: string): Followed<Name> {
    return this.followed(name, "counter", help);
  }

  text(): string {
    return this.all
      .map(({ name, type, help, samples }) => {
        const lines = Iterator.from(samples()).map(
          ({ suffix, labels, value }) => `${name}${suffix}${labelText(labels)} ${value}\n`,
        );
        return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${lines.toArray().join("")}`;
      })
      .join("");
  }

  private members<Name extends string, Member extends Sampled>(
    name: string,
    type: string,
    help: string,
    create: () => Member,
  ): Members<Name, Member> {
    const members = new Map<string, { labels: Labels<Name>; member: Member }>();
    this.add(name, type, help, function* () {
      for (const { labels, member } of members.values()) {
        for (const sample of member.samples()) yield { ...sample, labels: { ...labels, ...sample.labels } };
      }
    });
    return {
      of(labels) {
        const key = labelText(labels);
        let known = members.get(key);
        if (known === undefined) {
          known = { labels, member: create() };
          members.set(key, known);
        }
        return known.member;
      },
    };
  }

  private followed<Name extends string>(name: string, type: string, help: string): Followed<Name> {
    let read: () => Iterable<{ labels: Labels<Name>; value: number }> = () => [];
    this.add(name, type, help, function* () {
      for (const { labels, value } of read()) yield { suffix: "", labels, value };
    });
    return {
      follow(itsRead) {
        read = itsRead;
      },
    };
  }

  private add(name: string, type: string, help: string, samples: () => Iterable<Sample>): void {
    this.all.push({ name: this.prefix + name, type, help, samples });
  }
}

interface Family {
  name: string;
  type: string;
  help: string;
  samples(): Iterable<Sample>;
}

interface Sample {
  suffix: string;
  labels: Readonly<Record<string, string>>;
  value: number;
}

interface Sampled {
  samples(): Sample[];
}

function createSpread(bounds: readonly number[]): Spread & Sampled {
  const counts = new Float64Array(bounds.length + 1);
  let sum = 0;
  return {
    observe(value) {
      let place = 0;
      while (place < bounds.length && value > (bounds[place] as number)) place++;
      counts[place] = (counts[place] as number) + 1;
      sum += value;
    },
    samples() {
      let upTo = 0;
      const buckets = [...counts].map((count, place) => {
        upTo += count;
        return { suffix: "_bucket", labels: { le: String(bounds[place] ?? "+Inf") }, value: upTo };
      });
      return [
        ...buckets,
        { suffix: "_sum", labels: {}, value: sum },
        { suffix: "_count", labels: {}, value: upTo },
      ];
    },
  };
}

/** Quotes, backslashes and line ends are escaped as in JSON; nothing else that JSON escapes is in a label. */
function labelText(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}
