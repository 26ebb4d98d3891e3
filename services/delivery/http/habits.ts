/** How a host treats connections on which nothing happens. */
export interface Habit {
  /** The host was seen to keep an idle connection for so long. */
  keptMs: number;
  /** The host was seen to close a connection that was idle for so long. */
  closedAfterMs: number;
  /** The host was seen to close a connection that had answered so many requests. */
  closedAfterAnswers: number;
  /** When the host last closed a connection. */
  closedAt: number;
}

/**
 * A host that closes a connection this soon after an answer does so because of the number of requests it has served.
 */
const BRISK_MS = 50;
/**
 * A restart of a host closes its connections once. This says nothing of its habits, so closings are forgotten again.
 */
const FORGET_CLOSINGS_AFTER_MS = 600_000;
const HOSTS_MAX = 10_000;

/** How hosts treat idle connections, by their origins. The host that was met first is forgotten first. */
export class Habits {
  private readonly habits = new Map<string, Habit>();

  of(origin: string, now: number): Readonly<Habit> | undefined {
    const habit = this.habits.get(origin);
    if (habit !== undefined && now - habit.closedAt > FORGET_CLOSINGS_AFTER_MS) forgetClosings(habit);
    return habit;
  }

  noteKept(origin: string, idleMs: number): void {
    const habit = this.meet(origin);
    habit.keptMs = Math.max(habit.keptMs, idleMs);
  }

  noteClosed(origin: string, idleMs: number, answeredCount: number, now: number): void {
    const habit = this.meet(origin);
    habit.closedAt = now;
    if (idleMs < BRISK_MS) habit.closedAfterAnswers = Math.min(habit.closedAfterAnswers, answeredCount);
    else habit.closedAfterMs = Math.min(habit.closedAfterMs, idleMs);
  }

  private meet(origin: string): Habit {
    let habit = this.habits.get(origin);
    if (habit === undefined) {
      habit = { keptMs: 0, closedAfterMs: 0, closedAfterAnswers: 0, closedAt: 0 };
      forgetClosings(habit);
      this.habits.set(origin, habit);
      const [first] = this.habits.keys();
      if (this.habits.size > HOSTS_MAX && first !== undefined) this.habits.delete(first);
    }
    return habit;
  }
}

function forgetClosings(habit: Habit): void {
  habit.closedAfterMs = Number.POSITIVE_INFINITY;
  habit.closedAfterAnswers = Number.POSITIVE_INFINITY;
  habit.closedAt = Number.POSITIVE_INFINITY;
}
