/** How many entries of a lane wait for the answers of each delivery node. */
export class SentCounts {
  total = 0;
  private readonly sentTo = new Map<number, number>();

  to(nodeId: number): number {
    return this.sentTo.get(nodeId) ?? 0;
  }

  add(nodeId: number, count: number): void {
    this.total += count;
    const left = this.to(nodeId) + count;
    if (left === 0) this.sentTo.delete(nodeId);
    else this.sentTo.set(nodeId, left);
  }
}
