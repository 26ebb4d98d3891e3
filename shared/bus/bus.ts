import type { Region } from "../domain/scope.ts";
import type { Answers, Beat, Command, Due, Hint } from "./messages.ts";

/**
 * Carries messages between nodes. Sending neither waits nor throws, and promises nothing: a message that cannot be sent
 * now is dropped, because the sweep finds in Postgres all work that no message told of. A handler is called once for
 * each message, in the order in which one sender sent; an error that it throws is logged. A node that sends to itself
 * hears itself, but never on the sender's own stack.
 */
export interface Bus {
  /** The bus keeps commands for a while, so that a node that was away for some seconds hears them late. */
  sendCommand(command: Command): void;
  /** Every command of the regions reaches every node that asks; a worker ignores the shards it does not own. */
  consumeCommands(regions: Region[], handler: (command: Command) => void): Subscription;

  sendDue(deliveryNodeId: number, due: Due): void;
  onDue(nodeId: number, handler: (due: Due) => void): Subscription;

  sendAnswers(workerNodeId: number, answers: Answers): void;
  onAnswers(nodeId: number, handler: (answers: Answers) => void): Subscription;

  sendHint(hint: Hint): void;
  /** Every hint of the region reaches every node that asks; a worker ignores the shards it does not own. */
  onHint(region: Region, handler: (hint: Hint) => void): Subscription;

  sendBeat(kind: BeatKind, beat: Beat): void;
  onBeat(kind: BeatKind, handler: (beat: Beat) => void): Subscription;

  /** Whether a server takes messages now. A frozen server is noticed within about 3 s. */
  readonly connected: boolean;
  /** Counts of the messages that went wrong since the bus was opened, for metrics. */
  readonly counts: Readonly<BusCounts>;
  /** Hands all sent messages to the server if it takes them within a second, then ends every subscription. */
  close(): Promise<void>;
}

export interface Subscription {
  /** From now on the handler is not called, even for messages that had already arrived. */
  unsubscribe(): void;
}

export type BeatKind = "worker" | "delivery";

export interface BusCounts {
  /** Messages that could not be decoded. */
  malformed: number;
  /** Messages whose handler threw. */
  failed: number;
  /** Messages that could not be sent: no connection, too large, or a server that does not take them. */
  dropped: number;
  /** Commands that were sent, but that the stream did not confirm. */
  unacknowledged: number;
}

export function zeroCounts(): BusCounts {
  return { malformed: 0, failed: 0, dropped: 0, unacknowledged: 0 };
}
