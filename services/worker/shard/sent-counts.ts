/**
 * How many entries of a lane may wait for the answers of one delivery node. Answers take some milliseconds, or some tenths of a second if
 * statements of the project wait for each other. More entries would only wait in the node, where they take room from other projects.
 */
const SENT_MAX = 1_000;

/** How many entries of a lane wait for the answers of each delivery node. */
export class SentCounts {
  total = 0;
  private readonly sentTo = new Map<number, number>();

  /** How many more may be sent to the node. */
  leftFor(nodeId: number): number {
    return SENT_MAX - (this.sentTo.get(nodeId) ?? 0);
  }

  add(nodeId: number, count: number): void {
    this.total += count;
    const left = (this.sentTo.get(nodeId) ?? 0) + count;
    if (left === 0) this.sentTo.delete(nodeId);
    else this.sentTo.set(nodeId, left);
  }
}
