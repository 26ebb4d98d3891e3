import type { Connection, ConnectionEnd } from "./connection.ts";
import { Habits } from "./habits.ts";

/** For how long an idle connection is watched: less than the shortest time for which servers usually keep one. */
const WATCHED_MS = 1_600;
/** For how long one may be used while nothing is known of its host. */
const USABLE_MS_MIN = 100;
/**
 * For what part of the time that a host is known to keep a connection another one may be used: the host may close that
 * one earlier, and a request takes a while to reach it.
 */
const USABLE_PART = 0.5;
/** So that a name that leads elsewhere now is followed there. */
const AGE_MS_MAX = 60_000;
/** Over all hosts. The next one is closed and not kept. */
const IDLE_CONNECTIONS_MAX = 4_096;

/**
 * Connections that wait for the next request to their origin. Each is watched for longer than it may be used: so a host
 * shows for how long it keeps connections before a request depends on it.
 */
export class Pool {
  size = 0;
  /** Of each origin, the one that has been idle for longest comes first. */
  private readonly idle = new Map<string, Connection[]>();
  private readonly habits = new Habits();
  private sweptAt = 0;
  /** The event loop has looked at all sockets since: what was closed before it is known. */
  private sweptBeforeAt = 0;

  /** Keeps a connection that has just become idle, or closes it. */
  keep(connection: Connection): void {
    const { origin, idleSince } = connection;
    if (this.size >= IDLE_CONNECTIONS_MAX || this.usableUntil(connection, idleSince) <= idleSince) {
      connection.close();
      return;
    }
    const ofOrigin = this.idle.get(origin);
    if (ofOrigin === undefined) this.idle.set(origin, [connection]);
    else ofOrigin.push(connection);
    this.size++;
  }

  /** Whether there is one that may be used. */
  has(origin: string, now: number): boolean {
    const latest = this.idle.get(origin)?.at(-1);
    return latest !== undefined && now < this.usableUntil(latest, now);
  }

  /** Gives out the one that was used last, since the target is the least likely to close it; null if none may be used. */
  take(origin: string, now: number): Connection | null {
    const latest = this.idle.get(origin)?.at(-1);
    if (latest === undefined || now >= this.usableUntil(latest, now)) return null;
    this.drop(latest);
    latest.usedAt = now;
    return latest;
  }

  /** Forgets a connection that is closed. One that the target closed tells something about its host. */
  remove(connection: Connection, how: ConnectionEnd, now: number): void {
    const { origin, idleSince, usedAt, answeredCount } = connection;
    // It may have been closed long ago, and only now be seen. A request on it may have waited since for an answer.
    const keptUntil = how === "unanswered" ? Math.min(usedAt, this.sweptBeforeAt) : this.sweptBeforeAt;
    const idleMs = Math.max(0, keptUntil - idleSince);
    if (how !== "ours") this.habits.noteClosed(origin, idleMs, answeredCount, now);
    this.drop(connection);
    // Whatever made the target close one connection under a request may have closed the others as well.
    if (how === "unanswered") for (const other of [...(this.idle.get(origin) ?? [])]) other.close();
  }

  /** Notes for how long hosts have kept connections, and closes those that are of no use any more. */
  sweep(now: number): void {
    for (const [origin, ofOrigin] of [...this.idle]) {
      const idleMs = this.sweptAt - (ofOrigin[0]?.idleSince ?? now);
      if (idleMs > 0) this.habits.noteKept(origin, idleMs);
      for (const connection of [...ofOrigin])
        if (now >= this.watchedUntil(connection, now)) connection.close();
    }
    this.sweptBeforeAt = this.sweptAt;
    this.sweptAt = now;
  }

  close(): void {
    for (const ofOrigin of [...this.idle.values()])
      for (const connection of [...ofOrigin]) connection.close();
  }

  private drop(connection: Connection): void {
    const ofOrigin = this.idle.get(connection.origin);
    const place = ofOrigin?.lastIndexOf(connection) ?? -1;
    if (ofOrigin === undefined || place < 0) return;
    ofOrigin.splice(place, 1);
    this.size--;
    if (ofOrigin.length === 0) this.idle.delete(connection.origin);
  }

  private usableUntil(connection: Connection, now: number): number {
    const { origin, idleSince, keepAliveMs } = connection;
    const keptMs = this.habits.of(origin, now)?.keptMs ?? 0;
    // Where the target says for how long it keeps a connection, that is believed, and nothing has to be proved.
    const usableMs =
      keepAliveMs === null ? Math.max(USABLE_MS_MIN, USABLE_PART * keptMs) : USABLE_PART * WATCHED_MS;
    return Math.min(idleSince + usableMs, this.watchedUntil(connection, now));
  }

  private watchedUntil(connection: Connection, now: number): number {
    const { origin, idleSince, openedAt, answeredCount, keepAliveMs } = connection;
    const habit = this.habits.of(origin, now);
    if (habit !== undefined && answeredCount >= habit.closedAfterAnswers) return now;
    const closedAfterMs = Math.min(
      keepAliveMs ?? Number.POSITIVE_INFINITY,
      habit?.closedAfterMs ?? Number.POSITIVE_INFINITY,
    );
    return Math.min(idleSince + WATCHED_MS, idleSince + USABLE_PART * closedAfterMs, openedAt + AGE_MS_MAX);
  }
}
