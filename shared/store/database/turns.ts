/** A statement keeps others waiting for so long. Then it seems stuck, and others begin, because they may need other locks. */
export const STUCK_AFTER_MS = 100;
/** A batcher that gives way lets so many statements with a lock go before its own. Others let one go before theirs. */
export const PASSED_MAX = 15;
/**
 * Then the lock is kept for the batcher for so long, unless another one that asked before needs it. By then it can begin, but if two of
 * its statements seem stuck.
 */
const KEPT_MS = 2 * STUCK_AFTER_MS;

/** A batcher (batch.ts), as it stands with the others of its turns. */
export interface Standing<Lock> {
  givesWay(lock: Lock): boolean;
  tryAgain(): void;
}

interface Statement<Lock> {
  begunAt: number;
  locks: ReadonlySet<Lock>;
}

interface Wait {
  /** How many statements with the lock have begun meanwhile. */
  passed: number;
  /** Until when the lock is kept for the batcher. */
  keptUntil: number;
}

/**
 * Whose turn it is among the batchers (batch.ts) of one process whose statements lock rows for long, such as a project's flow.
 * In Postgres they would wait for each other's locks, each with a connection, and each in a statement of few items. Here those
 * that need a lock in common begin one after the other, in the order in which they asked, and items that come meanwhile join
 * them. Batchers that give way come last, but for PASSED_MAX.
 */
export class Turns<Lock> {
  private readonly underWay = new Set<Statement<Lock>>();
  /** The batchers that wait, in the order in which they asked, with the locks that they wait for. */
  private readonly waiting = new Map<Standing<Lock>, Map<Lock, Wait>>();

  /** When a statement of the batcher that needs this lock may begin, by performance.now(), if those under way do not end before. */
  nextAt(batcher: Standing<Lock>, lock: Lock): number {
    let nextAt = Number.NEGATIVE_INFINITY;
    for (const { begunAt, locks } of this.underWay)
      if (locks.has(lock)) nextAt = Math.max(nextAt, begunAt + STUCK_AFTER_MS);
    for (const [other, waits] of this.waiting) {
      if (other === batcher && waits.has(lock)) break;
      nextAt = Math.max(nextAt, waits.get(lock)?.keptUntil ?? nextAt);
    }
    return nextAt;
  }

  /** The batcher waits for these locks, and for no others. It is asked to try again when a statement has ended. */
  stand(batcher: Standing<Lock>, locks: ReadonlySet<Lock>): void {
    const before = this.waiting.get(batcher);
    const waits = new Map<Lock, Wait>();
    for (const lock of locks)
      waits.set(lock, before?.get(lock) ?? { passed: 0, keptUntil: Number.NEGATIVE_INFINITY });
    if (locks.size > 0) this.waiting.set(batcher, waits);
    else this.waiting.delete(batcher);
  }

  /** A statement of the batcher begins. Call what it returns when the statement has ended: then all that wait try again, and the batcher itself. */
  begin(batcher: Standing<Lock>, begunAt: number, locks: ReadonlySet<Lock>): () => void {
    const statement = { begunAt, locks };
    this.underWay.add(statement);
    for (const [other, waits] of this.waiting)
      if (other !== batcher) for (const lock of locks) pass(waits.get(lock), other.givesWay(lock), begunAt);
    // It asks anew for what it goes on waiting for.
    const left = this.waiting.get(batcher);
    if (this.waiting.delete(batcher) && left !== undefined) this.waiting.set(batcher, left);
    return () => {
      this.underWay.delete(statement);
      const inOrder = [...this.waiting.keys()].filter((other) => other !== batcher);
      inOrder.push(batcher);
      const isLast = (other: Standing<Lock>) =>
        this.waiting
          .get(other)
          ?.keys()
          .some((lock) => other.givesWay(lock)) === true;
      const { true: last = [], false: first = [] } = Object.groupBy(inOrder, (other) => `${isLast(other)}`);
      for (const { tryAgain } of [...first, ...last]) tryAgain();
    };
  }
}

function pass(wait: Wait | undefined, givesWay: boolean, now: number): void {
  if (wait === undefined) return;
  wait.passed++;
  if (wait.passed < (givesWay ? PASSED_MAX : 1)) return;
  wait.passed = 0;
  wait.keptUntil = now + KEPT_MS;
}
