/**
 * Percentiles of durations that can be added up: a DDSketch. Masson, Rim, Lee: "DDSketch: A Fast and Fully-Mergeable Quantile Sketch
 * with Relative-Error Guarantees", VLDB 2019. Values are whole milliseconds, at least 0. A sketch of all values of two others is the
 * same whether it was made of the values or by adding the two.
 */

/** Half of the promised error, since percentiles are rounded too: that adds up to 1 % from 50 ms on. Below they are exact. */
const SKETCH_RELATIVE_ERROR = 0.01;

const GAMMA = (1 + SKETCH_RELATIVE_ERROR) / (1 - SKETCH_RELATIVE_ERROR);
const PER_LOG = 1 / Math.log(GAMMA);
/** The index of the value 0. Values from 1 on have greater indexes. */
const ZERO = 0;

const indexOf = (value: number) => (value < 1 ? ZERO : 1 + Math.ceil(Math.log(value) * PER_LOG));
const valueAt = (index: number) =>
  index === ZERO ? 0 : Math.round((2 * GAMMA ** (index - 1)) / (GAMMA + 1));

/** Percentiles in whole milliseconds; all null without values. */
export interface Percentiles {
  p50: number | null;
  p90: number | null;
  p99: number | null;
  max: number | null;
}

export class Sketch {
  /** How many values there are of each index. */
  private readonly counts = new Map<number, number>();
  private total = 0;
  private max = 0;

  get count(): number {
    return this.total;
  }

  add(value: number, count = 1): void {
    this.addAt(indexOf(value), count);
    if (value > this.max) this.max = value;
  }

  addAll(other: Sketch): void {
    for (const [index, count] of other.counts) this.addAt(index, count);
    if (other.max > this.max) this.max = other.max;
  }

  private addAt(index: number, count: number): void {
    this.counts.set(index, (this.counts.get(index) ?? 0) + count);
    this.total += count;
  }

  /** The least value that is at least as great as the share `q` of all values, within the relative error; null if there is none. */
  quantile(q: number): number | null {
    return this.quantiles([q])[0] ?? null;
  }

  percentiles(): Percentiles {
    const [p50 = null, p90 = null, p99 = null] = this.quantiles([0.5, 0.9, 0.99]);
    return { p50, p90, p99, max: this.total === 0 ? null : this.max };
  }

  /** The quantiles for shares in ascending order. */
  private quantiles(shares: readonly number[]): number[] {
    const found: number[] = [];
    if (this.total === 0) return found;
    let before = 0;
    for (const [index, count] of this.sorted()) {
      before += count;
      while (found.length < shares.length && before >= this.rankOf(shares[found.length] ?? 1)) {
        found.push(Math.min(valueAt(index), this.max));
      }
      if (found.length === shares.length) break;
    }
    return found;
  }

  private rankOf(share: number): number {
    return Math.max(1, Math.ceil(share * this.total));
  }

  private sorted(): [number, number][] {
    return [...this.counts].sort(([one], [other]) => one - other);
  }

  /** The greatest value, then the step from index to index, each with its count, in seven bits of each byte. Null if empty. */
  encode(): Buffer | null {
    if (this.total === 0) return null;
    const bytes: number[] = [];
    writeNumber(bytes, this.max);
    let last = 0;
    for (const [index, count] of this.sorted()) {
      writeNumber(bytes, index - last);
      writeNumber(bytes, count);
      last = index;
    }
    return Buffer.from(bytes);
  }

  /** Adds a sketch that `encode` wrote. */
  addEncoded(bytes: Uint8Array | null): void {
    if (bytes === null) return;
    const reader = { bytes, at: 0 };
    this.max = Math.max(this.max, readNumber(reader));
    for (let index = 0; reader.at < bytes.length; ) {
      index += readNumber(reader);
      this.addAt(index, readNumber(reader));
    }
  }
}

function writeNumber(bytes: number[], number: number): void {
  let rest = number;
  while (rest >= 128) {
    bytes.push((rest % 128) + 128);
    rest = Math.floor(rest / 128);
  }
  bytes.push(rest);
}

function readNumber(reader: { bytes: Uint8Array; at: number }): number {
  let number = 0;
  for (let scale = 1; ; scale *= 128) {
    const byte = reader.bytes[reader.at++];
    if (byte === undefined) throw new Error("the bytes of a sketch end too early");
    number += (byte % 128) * scale;
    if (byte < 128) return number;
  }
}
