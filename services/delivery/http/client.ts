import type { Socket } from "node:net";
import type { Exchange } from "../../../shared/domain/run.ts";
import { Connection, type ConnectionEnd, type ConnectionOwner } from "./connection.ts";
import { explainFault } from "./explain.ts";
import { Pool } from "./pool.ts";
import type { Reached, Reaching } from "./reach.ts";

/** Makes a connection to a URL's host, or refuses to. */
export type Dial = (url: URL, reached: Reached) => Reaching;

export interface Posting {
  /** The whole request, from `writeRequest`. */
  request: Buffer;
  /** By `performance.now()`. The last byte that is read must have come by then. */
  deadlineAt: number;
  /** Breaks the request off. */
  signal: AbortSignal;
}

/** The time for looking up the name, connecting and TLS together. */
const CONNECT_TIMEOUT_MS = 10_000;
/** A deadline may be kept this late. One clock ticks for all requests, and stops while there are none. */
const TICK_MS = 25;

/** Sends requests over connections of its own, which it keeps for a little while. */
export class Client implements ConnectionOwner {
  private readonly pool = new Pool();
  private readonly posts = new Set<Post>();
  private readonly heardSignals = new WeakSet<AbortSignal>();
  private waiting: Post[] = [];
  private clock: NodeJS.Timeout | null = null;

  constructor(private readonly dial: Dial) {}

  /** Never throws and never rejects: everything that a host does is an outcome. */
  post(url: URL, posting: Posting): Promise<Exchange> {
    return new Promise((resolve) => {
      const post = new Post(url, posting, resolve);
      this.hear(posting.signal);
      this.posts.add(post);
      this.tickOn();
      if (this.pool.has(post.origin, performance.now())) this.waitForTurn(post);
      else this.connect(post);
    });
  }

  /** Breaks off all requests. */
  close(): void {
    for (const post of [...this.posts]) this.breakOff(post, "broken");
    this.pool.close();
    this.tickOff();
  }

  onIdle(connection: Connection): void {
    this.pool.keep(connection);
  }

  onClosed(connection: Connection, how: ConnectionEnd): void {
    this.pool.remove(connection, how, performance.now());
  }

  /**
   * A kept connection may be closed already. The close shows when the event loop looks at its sockets. It has done so
   * once the second turn from here begins.
   */
  private waitForTurn(post: Post): void {
    this.waiting.push(post);
    if (this.waiting.length === 1) setImmediate(() => setImmediate(() => this.sendWaiting()));
  }

  private sendWaiting(): void {
    const { waiting } = this;
    this.waiting = [];
    for (const post of waiting) {
      if (!this.posts.has(post)) continue;
      // The process may have been held up since the post before this one.
      const kept = this.pool.take(post.origin, performance.now());
      if (kept === null) this.connect(post);
      else this.send(post, kept);
    }
  }

  private connect(post: Post): void {
    post.connectBy = Math.min(post.deadlineAt, performance.now() + CONNECT_TIMEOUT_MS);
    post.reaching = this.dial(post.url, {
      onReached: (socket) => this.sendFirst(post, socket),
      onFailed: (error) =>
        this.settle(post, { kind: "faulted", message: explainFault(error, error.message) }),
    });
  }

  private sendFirst(post: Post, socket: Socket): void {
    post.reaching = null;
    const connection = new Connection(socket, post.origin, this);
    // A process that was frozen hears of its connections before its timers. The attempt that waited for this one may
    // have been taken for lost since, and given to another node.
    if (performance.now() <= post.connectBy) this.send(post, connection);
    else this.giveUpUnsent(post, connection);
  }

  private send(post: Post, connection: Connection): void {
    if (performance.now() > post.deadlineAt) {
      this.giveUpUnsent(post, connection);
      return;
    }
    post.connection = connection;
    connection.send(post.takeRequest(), (exchange) => this.settle(post, exchange));
  }

  private giveUpUnsent(post: Post, connection: Connection): void {
    connection.close();
    this.giveUp(post);
  }

  private settle(post: Post, exchange: Exchange): void {
    if (!this.posts.delete(post)) return;
    post.dropRequest();
    post.resolve(exchange);
  }

  private giveUp(post: Post): void {
    if (performance.now() > post.deadlineAt) {
      this.breakOff(post, "stalled");
      return;
    }
    post.reaching?.cancel();
    const seconds = CONNECT_TIMEOUT_MS / 1_000;
    this.settle(post, {
      kind: "faulted",
      message: `No connection to the target could be made within ${seconds} seconds.`,
    });
  }

  private breakOff(post: Post, how: "stalled" | "broken"): void {
    post.reaching?.cancel();
    const message = "The request was broken off.";
    post.connection?.breakOff(how, message);
    this.settle(post, how === "stalled" ? { kind: "stalled" } : { kind: "faulted", message });
  }

  private hear(signal: AbortSignal): void {
    if (this.heardSignals.has(signal)) return;
    this.heardSignals.add(signal);
    const abort = () => {
      for (const post of [...this.posts]) if (post.signal === signal) this.breakOff(post, "broken");
    };
    signal.addEventListener("abort", abort, { once: true });
  }

  private tickOn(): void {
    this.clock ??= setInterval(() => this.tick(), TICK_MS);
  }

  private tickOff(): void {
    if (this.clock !== null) clearInterval(this.clock);
    this.clock = null;
  }

  private tick(): void {
    const now = performance.now();
    for (const post of this.posts) {
      if (now > post.deadlineAt || (post.connection === null && now > post.connectBy)) this.giveUp(post);
    }
    this.pool.sweep(now);
    if (this.posts.size === 0 && this.pool.size === 0) this.tickOff();
  }
}

/** One request, until it has ended. */
class Post {
  reaching: Reaching | null = null;
  connection: Connection | null = null;
  connectBy = Number.POSITIVE_INFINITY;
  readonly origin: string;
  private request: Buffer | null;
  readonly deadlineAt: number;
  readonly signal: AbortSignal;

  constructor(
    readonly url: URL,
    { request, deadlineAt, signal }: Posting,
    readonly resolve: (exchange: Exchange) => void,
  ) {
    this.origin = url.origin;
    this.request = request;
    this.deadlineAt = deadlineAt;
    this.signal = signal;
  }

  /** Hands the bytes out once and forgets them, since the answer may take a quarter of an hour. */
  takeRequest(): Buffer {
    const { request } = this;
    if (request === null) throw new Error("A request is sent once.");
    this.request = null;
    return request;
  }

  /**
   * A resolver that has not answered keeps hold of the post for half a minute after its end. The bytes need not stay.
   */
  dropRequest(): void {
    this.request = null;
  }
}
