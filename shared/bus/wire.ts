import type { Log } from "../platform/log.ts";
import type { Bus, BusCounts, Subscription } from "./bus.ts";
import { createComplaint } from "./complaint.ts";
import {
  decodeAnswers,
  decodeBeat,
  decodeCommand,
  decodeDue,
  decodeHint,
  encodeAnswers,
  encodeBeat,
  encodeCommand,
  encodeDue,
  encodeHint,
} from "./encoding.ts";
import { subjects } from "./subjects.ts";

/** Carries texts from a subject to its listeners. Kinds of bus differ only in their wires. */
export interface Wire {
  /** Never throws, but counts a text that cannot be sent. A kept text also reaches a listener that is back soon. */
  publish(subject: string, text: string, kept: boolean): void;
  /** After unsubscribing, the listener is not called, even for texts that had already arrived. */
  listen(listener: Listener): Subscription;
  readonly connected: boolean;
  close(): Promise<void>;
}

export interface Listener {
  filter: string;
  /** Whether it listens to texts that are published to be kept. */
  kept: boolean;
  onText(text: string): void;
}

/** Longer lists travel as several messages, so that none comes near the 1 MB that a NATS server takes. */
const ITEMS_PER_MESSAGE_MAX = 1_000;

/** The bus over a wire. It decodes all messages that arrive, and catches the errors of their handlers. */
export function busOver(wire: Wire, counts: BusCounts, log: Log): Bus {
  const complainMalformed = createComplaint(log, "malformed message dropped");
  const complainFailed = createComplaint(log, "message handler failed");

  function hear<M>(
    filter: string,
    decode: (text: string) => M | undefined,
    handler: (message: M) => void,
    kept = false,
  ): Subscription {
    return wire.listen({
      filter,
      kept,
      onText(text) {
        const message = decode(text);
        if (message === undefined) {
          counts.malformed++;
          complainMalformed({ filter, bytes: text.length });
          return;
        }
        try {
          handler(message);
        } catch (error) {
          counts.failed++;
          complainFailed({ filter, err: error });
        }
      },
    });
  }

  return {
    sendCommand(command) {
      const subject = subjects.command(command.region, command.shard, command.projectNo);
      // A command with an empty list tells of a schedule or a bulk operation, so it is sent too.
      for (const owed of command.owed.length === 0 ? [[]] : parts(command.owed))
        wire.publish(subject, encodeCommand({ ...command, owed }), true);
    },
    consumeCommands(regions, handler) {
      const perRegion = regions.map((region) =>
        hear(subjects.commandsOf(region), decodeCommand, handler, true),
      );
      return {
        unsubscribe() {
          for (const subscription of perRegion) subscription.unsubscribe();
        },
      };
    },

    sendDue(deliveryNodeId, due) {
      for (const items of parts(due.items)) {
        wire.publish(subjects.due(deliveryNodeId), encodeDue({ ...due, items }), false);
      }
    },
    onDue: (nodeId, handler) => hear(subjects.due(nodeId), decodeDue, handler),

    sendAnswers(workerNodeId, answers) {
      for (const items of parts(answers.items)) {
        wire.publish(subjects.answers(workerNodeId), encodeAnswers({ ...answers, items }), false);
      }
    },
    onAnswers: (nodeId, handler) => hear(subjects.answers(nodeId), decodeAnswers, handler),

    sendHint({ region, shard, owed, freed, begun = [] }) {
      const subject = subjects.hint(region, shard);
      const [owedParts, freedParts, begunParts] = [parts(owed), parts(freed), parts(begun)];
      for (let at = 0; at < Math.max(owedParts.length, freedParts.length, begunParts.length); at++) {
        const part = { owed: owedParts[at] ?? [], freed: freedParts[at] ?? [], begun: begunParts[at] ?? [] };
        wire.publish(subject, encodeHint({ region, shard, ...part }), false);
      }
    },
    onHint: (region, handler) => hear(subjects.hintsOf(region), decodeHint, handler),

    sendBeat: (kind, beat) => wire.publish(subjects.beat(kind), encodeBeat(beat), false),
    onBeat: (kind, handler) => hear(subjects.beat(kind), decodeBeat, handler),

    get connected() {
      return wire.connected;
    },
    counts,
    close: () => wire.close(),
  };
}

/** The list in pieces that fit a message. An empty list has no piece, since its message would tell nothing. */
function parts<T>(items: T[]): T[][] {
  if (items.length === 0) return [];
  if (items.length <= ITEMS_PER_MESSAGE_MAX) return [items];
  const pieces: T[][] = [];
  for (let at = 0; at < items.length; at += ITEMS_PER_MESSAGE_MAX) {
    pieces.push(items.slice(at, at + ITEMS_PER_MESSAGE_MAX));
  }
  return pieces;
}
