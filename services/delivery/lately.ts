/** What was noted in the last `forMs`. Some of it is remembered for up to twice as long. */
export class Lately<T> {
  private seen = new Set<T>();
  private seenBefore = new Set<T>();
  private since: number;

  constructor(
    private readonly forMs: number,
    private readonly steadyNow = () => performance.now(),
  ) {
    this.since = steadyNow();
  }

  note(one: T): void {
    this.forget();
    this.seen.add(one);
  }

  has(one: T): boolean {
    this.forget();
    return this.seen.has(one) || this.seenBefore.has(one);
  }

  private forget(): void {
    const now = this.steadyNow();
    if (now <= this.since + this.forMs) return;
    this.seenBefore = now > this.since + 2 * this.forMs ? new Set() : this.seen;
    this.seen = new Set();
    this.since = now;
  }
}
