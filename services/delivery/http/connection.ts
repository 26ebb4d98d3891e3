import type { Socket } from "node:net";
import type { Exchange } from "../../../shared/domain/run.ts";
import { AnswerReader } from "./answer.ts";
import { explainFault } from "./explain.ts";

/**
 * How a connection ended. `idle`: the target closed it while it was idle. `unanswered`: the target closed it in place
 * of an answer to a later request. `ours`: we closed it, or it ended with its exchange.
 */
export type ConnectionEnd = "ours" | "idle" | "unanswered";

/** The calls by which a connection tells its client of its state. */
export interface ConnectionOwner {
  /** The exchange is over and the connection may be used again. */
  onIdle(connection: Connection): void;
  onClosed(connection: Connection, how: ConnectionEnd): void;
}

/** One connection to a customer's host, with one request on it at a time. */
export class Connection {
  /** Requests that were answered in full. */
  answeredCount = 0;
  /** By `performance.now()`, as the two below. */
  readonly openedAt = performance.now();
  idleSince = this.openedAt;
  /** When it was last taken out of the pool. */
  usedAt = this.openedAt;
  /** How long the target said that it keeps an idle connection; null if it did not say. */
  keepAliveMs: number | null = null;
  private readonly reader = new AnswerReader();
  private settle: ((exchange: Exchange) => void) | null = null;
  private isWritten = true;
  private isClosed = false;
  private error: Error | null = null;

  constructor(
    private readonly socket: Socket,
    /** The scheme, host and port that it was dialled for. Only requests to these may share it. */
    readonly origin: string,
    private readonly owner: ConnectionOwner,
  ) {
    socket.on("data", (chunk: Buffer) => this.read(chunk));
    socket.on("end", () => this.endOfInput());
    socket.on("error", (error: Error) => {
      this.error = error;
    });
    socket.on("close", () => this.endOfInput());
  }

  /** Sends a request in one write. `settle` is called once, with the outcome. */
  send(request: Buffer, settle: (exchange: Exchange) => void): void {
    this.settle = settle;
    this.reader.begin();
    this.isWritten = false;
    this.socket.write(request, this.onWritten);
  }

  /** Ends the exchange, and the connection with it. If an answer has begun, its status is kept. */
  breakOff(how: "stalled" | "broken", message: string): void {
    if (this.settle === null) return;
    this.reader.breakOff(how);
    this.end(
      this.reader.exchange() ?? (how === "stalled" ? { kind: "stalled" } : { kind: "faulted", message }),
    );
  }

  close(): void {
    this.shut("ours");
  }

  private readonly onWritten = (error?: Error | null): void => {
    if (error == null) this.isWritten = true;
  };

  private read(chunk: Buffer): void {
    if (this.isClosed) return;
    // Bytes that answer no request would be read as the answer to the next one.
    if (this.settle === null) this.shut("ours");
    else this.reader.read(chunk);
    if (this.settle !== null && this.reader.state === "over") this.conclude();
  }

  /** The target has closed its side, or the connection is gone. */
  private endOfInput(): void {
    if (this.isClosed) return;
    if (this.settle === null) this.shut("idle");
    else if (this.reader.byteCount === 0) this.endUnanswered();
    else {
      this.reader.endOfInput(this.error === null);
      this.conclude();
    }
  }

  private endUnanswered(): void {
    if (this.answeredCount > 0) {
      // It is unknown whether the target closed the connection before the request came, or because of the request.
      this.end({ kind: "unknown" }, "unanswered");
    } else {
      const message = explainFault(this.error, "The target closed the connection without an answer.");
      this.end({ kind: "faulted", message });
    }
  }

  private conclude(): void {
    const { reader } = this;
    const { head } = reader;
    const exchange = reader.exchange();
    if (head === null || exchange === null) {
      const otherwise = "The target closed the connection within the head of its answer.";
      const message = reader.fault ?? explainFault(this.error, otherwise);
      this.end({ kind: "faulted", message, hasAnswered: true });
      return;
    }
    const isWhole = head.isPersistent && reader.bodyEnd === "complete" && !reader.hasMore;
    // A target that answers before it has read the whole request may never read the rest.
    if (!isWhole || !this.isWritten) {
      this.end(exchange);
      return;
    }
    const settle = this.takeSettle();
    this.answeredCount++;
    this.idleSince = performance.now();
    this.keepAliveMs = head.keepAliveMs;
    this.owner.onIdle(this);
    settle(exchange);
  }

  private end(exchange: Exchange, how: ConnectionEnd = "ours"): void {
    const settle = this.takeSettle();
    this.shut(how);
    settle(exchange);
  }

  private takeSettle(): (exchange: Exchange) => void {
    const settle = this.settle;
    this.settle = null;
    return settle ?? (() => undefined);
  }

  private shut(how: ConnectionEnd): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.socket.destroy();
    this.owner.onClosed(this, how);
  }
}
