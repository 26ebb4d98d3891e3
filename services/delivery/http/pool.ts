import type { Connection, ConnectionEnd } from "./connection.ts";
import { Habits } from "./habits.ts";

/** An idle connection is watched for this long, which is less than servers usually keep one. */
const WATCHED_MS = 4_000;
/** An idle connection may be used for this long while nothing is known of its host. */
const USABLE_MS_MIN = 100;
/**
 * A connection may be idle for this part of the time for which its host is known to keep one: the host may close this
 * one earlier, and a request takes a while to reach it.
 */
const USABLE_PART = 0.5;
/** No connection is kept for longer, so that requests follow a name that leads to another address now. */
const AGE_MS_MAX = 60_000;
/** The limit over all hosts. Beyond it the connection that has been idle for longest is closed. */
const IDLE_CONNECTIONS_MAX = 4_096;

/**
 * Connections that wait for the next request to their origin. Each is watched for longer than it may be used, so that a
 * host shows for how long it keeps connections before a request depends on it.
 */
export class Pool {
  /** By origin. The connection that has been idle for longest comes first. */
  private readonly idle = new Map<string, Connection[]>();
  /** Those of all origins, in the same order. */
  private readonly all = new Set<Connection>();
  private readonly habits = new Habits();
  private sweptAt = 0;
  /** The event loop has looked at all sockets since this instant, so every close before the instant is known. */
  private sweptBeforeAt = 0;

  get size(): number {
    return this.all.size;
  }

  /** Keeps a connection that has just become idle, or closes it. */
  keep(connection: Connection): void {
    const { origin, idleSince } = connection;
    if (this.usableUntil(connection, idleSince) <= idleSince) {
      connection.close();
      return;
    }
    if (this.size >= IDLE_CONNECTIONS_MAX) this.all.values().next().value?.close();
    const ofOrigin = this.idle.get(origin);
    if (ofOrigin === undefined) this.idle.set(origin, [connection]);
    else ofOrigin.push(connection);
    this.all.add(connection);
  }

  /** Whether a connection to the origin may be used. */
  has(origin: string, now: number): boolean {
    const latest = this.idle.get(origin)?.at(-1);
    return latest !== undefined && now < this.usableUntil(latest, now);
  }

  /** Takes the connection that was used last, which the target is least likely to close; null if none may be used. */
  take(origin: string, now: number): Connection | null {
    const latest = this.idle.get(origin)?.at(-1);
    if (latest === undefined || now >= this.usableUntil(latest, now)) return null;
    this.drop(latest);
    latest.usedAt = now;
    return latest;
  }

  /** Forgets a closed connection. If the target closed it, the close tells something about the host. */
  remove(connection: Connection, how: ConnectionEnd, now: number): void {
    const { origin, idleSince, usedAt, answeredCount } = connection;
    // A close may be seen long after it happened, and a request may have waited for an answer since.
    const keptUntil = how === "unanswered" ? Math.min(usedAt, this.sweptBeforeAt) : this.sweptBeforeAt;
    const idleMs = Math.max(0, keptUntil - idleSince);
    if (how !== "ours") this.habits.noteClosed(origin, idleMs, answeredCount, now);
    this.drop(connection);
    // The reason why the target closed one connection under a request may hold for the others too.
    if (how === "unanswered") for (const other of [...(this.idle.get(origin) ?? [])]) other.close();
  }

  /** Notes for how long hosts have kept connections, and closes connections that are of no more use. */
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
    this.all.delete(connection);
    if (ofOrigin.length === 0) this.idle.delete(connection.origin);
  }

  private usableUntil(connection: Connection, now: number): number {
    const { origin, idleSince, keepAliveMs } = connection;
    const keptMs = this.habits.of(origin, now)?.keptMs ?? 0;
    // The target's own word on how long it keeps a connection is believed without a proof.
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
