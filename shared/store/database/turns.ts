/** A statement keeps others waiting for so long. Then it seems stuck, and others begin, because they may need other locks. */
export const STUCK_AFTER_MS = 100;

interface Statement<Lock> {
  begunAt: number;
  locks: ReadonlySet<Lock>;
}

/**
 * Whose turn it is among the batchers (batch.ts) of one process whose statements lock rows for long, such as a project's flow.
 * In Postgres they would wait for each other's locks, each with a connection, and each in a statement of few items. Here those
 * that need a lock in common begin one after the other, in the order in which they asked, and items that come meanwhile join
 * them.
 */
export class Turns<Lock> {
  private readonly underWay = new Set<Statement<Lock>>();
  private readonly waiting = new Set<() => void>();

  /** When a statement that needs these locks may begin, by performance.now(), if those under way do not end before. */
  nextAt(locks: ReadonlySet<Lock>): number {
    let nextAt = Number.NEGATIVE_INFINITY;
    for (const { begunAt, locks: taken } of this.underWay)
      if (!locks.isDisjointFrom(taken)) nextAt = Math.max(nextAt, begunAt + STUCK_AFTER_MS);
    return nextAt;
  }

  /** Calls `tryAgain` once, when a statement has ended. */
  stand(tryAgain: () => void): void {
    this.waiting.add(tryAgain);
  }

  /** A statement begins. Call what it returns when the statement has ended. */
  begin(begunAt: number, locks: ReadonlySet<Lock>): () => void {
    const statement = { begunAt, locks };
    this.underWay.add(statement);
    return () => {
      this.underWay.delete(statement);
      const again = [...this.waiting];
      this.waiting.clear();
      for (const tryAgain of again) tryAgain();
    };
  }
}
