import {
  AckPolicy,
  DeliverPolicy,
  DiscardPolicy,
  JetStreamApiError,
  type JetStreamManager,
  jetstreamManager,
  ReplayPolicy,
  RetentionPolicy,
  StorageType,
} from "@nats-io/jetstream";
import {
  type Msg,
  type NatsConnection,
  type Subscription as NatsSubscription,
  nanos,
} from "@nats-io/transport-node";
import type { Log } from "../platform/log.ts";
import type { BusCounts } from "./bus.ts";
import { createComplaint } from "./complaint.ts";
import { subjects } from "./subjects.ts";
import type { Listener } from "./wire.ts";

const STREAM = "cmd";
const STREAM_AGE_MAX_MS = 120_000;
const STREAM_BYTES_MAX = 256 * 1024 * 1024;
/** The number of copies on a cluster of servers, so that the loss of one of them delays no command. */
const STREAM_COPIES = 3;
const API_TIMEOUT_MS = 2_000;
const HEARTBEAT_MS = 500;
/** A consumer starts again this much before the last command that it heard. To hear a command twice is harmless. */
const REPLAY_MS = 3_000;
/** How long the server keeps a consumer that nobody listens to. */
const CONSUMER_IDLE_MS = 10_000;
/** Ticks (of 250 ms) without a command or heartbeat after which a consumer is taken for lost. */
const QUIET_TICKS_MAX = 6;
/** Ticks after which an acknowledgement is taken for lost. */
const ACK_TICKS_MAX = 8;
/** The server's answer when the stream exists with another configuration than ours. */
const STREAM_CONFIGURED_OTHERWISE = 10058;

/**
 * The JetStream part of one connection: the stream of commands, the publishing to it, and a consumer for each listener.
 * Whenever an acknowledgement or a heartbeat stays away, stream and consumers are made again. This covers a server that
 * comes back with an empty store, a stream or consumer that somebody deleted, and a JetStream that is not up yet.
 */
export interface CommandStream {
  /** Throws when the connection has ended or the text is too large. */
  publish(subject: string, text: string): void;
  /** Begins with the next command, or, after an earlier connection, a little before the last command that was heard. */
  follow(listener: Listener): () => void;
  /** The caller ticks every 250 ms. */
  tick(): void;
  /** Tries once to make a missing stream and missing consumers. Resolves after the try, with or without success. */
  restore(): Promise<void>;
  end(): void;
}

/** How far each listener got, by the server's clock. Only this outlives a connection. */
export type Progress = WeakMap<Listener, { startedAt?: Date; last?: Msg }>;

export function openCommandStream(
  connection: NatsConnection,
  nameInbox: () => string,
  progress: Progress,
  counts: BusCounts,
  log: Log,
): CommandStream {
  const manager = jetstreamManager(connection, { checkAPI: false, timeout: API_TIMEOUT_MS });
  const consumers = new Map<Listener, Consumer>();
  const acknowledgements = openAcknowledgements(connection, nameInbox(), counts, () => {
    streamDoubtful = true;
  });
  const complain = createComplaint(log, "command stream not restored");
  let streamDoubtful = true;
  let restoring = false;
  let ended = false;

  async function restore(): Promise<void> {
    if (restoring || ended) return;
    restoring = true;
    try {
      const api = await manager;
      await createStream(api, connection.info?.cluster === undefined ? 1 : STREAM_COPIES);
      streamDoubtful = false;
      for (const consumer of consumers.values()) {
        if (!consumer.flowing()) await consumer.start(api).catch(complainOfRefusal);
      }
    } catch (error) {
      complainUnlessEnded(error);
    } finally {
      restoring = false;
    }
  }

  /** A consumer that the server refuses keeps no other from being made. A server that is silent ends the round. */
  function complainOfRefusal(error: unknown): void {
    if (!(error instanceof JetStreamApiError)) throw error;
    complainUnlessEnded(error);
  }

  function complainUnlessEnded(error: unknown): void {
    if (!ended) complain({ err: error });
  }

  return {
    publish: acknowledgements.publish,
    follow(listener) {
      const consumer = createConsumer(connection, nameInbox, listener, progress);
      consumers.set(listener, consumer);
      void restore();
      return () => {
        consumers.delete(listener);
        consumer.stop();
      };
    },
    tick() {
      acknowledgements.tick();
      for (const consumer of consumers.values()) consumer.tick();
      if (streamDoubtful || [...consumers.values()].some((consumer) => !consumer.flowing())) void restore();
    },
    restore,
    end() {
      ended = true;
      acknowledgements.end();
    },
  };
}

/** Does nothing if the stream exists. A stream that an operator has configured otherwise is left as it is. */
async function createStream(api: JetStreamManager, copies: number): Promise<void> {
  try {
    await api.streams.add({
      name: STREAM,
      subjects: [subjects.commands],
      retention: RetentionPolicy.Limits,
      storage: StorageType.File,
      discard: DiscardPolicy.Old,
      max_age: nanos(STREAM_AGE_MAX_MS),
      max_bytes: STREAM_BYTES_MAX,
      num_replicas: copies,
    });
  } catch (error) {
    if (!(error instanceof JetStreamApiError && error.apiError().err_code === STREAM_CONFIGURED_OTHERWISE)) {
      throw error;
    }
  }
}

interface Consumer {
  start(api: JetStreamManager): Promise<void>;
  flowing(): boolean;
  tick(): void;
  stop(): void;
}

/**
 * An ephemeral push consumer. The server pushes to an inbox of ours. A command then costs as much as a core message,
 * there is no loop that could end, and every server since 2.9 works the same.
 */
function createConsumer(
  connection: NatsConnection,
  nameInbox: () => string,
  listener: Listener,
  progress: Progress,
): Consumer {
  const reached = progress.get(listener) ?? {};
  progress.set(listener, reached);
  let subscription: NatsSubscription | undefined;
  let inbox = "";
  let quietTicks = QUIET_TICKS_MAX;
  let stopped = false;

  function onMessage(error: Error | null, message: Msg): void {
    if (error) {
      quietTicks = QUIET_TICKS_MAX;
      return;
    }
    quietTicks = 0;
    // Messages of the server itself have the inbox as their subject. Commands have their own, with or without headers.
    if (!message.headers || message.subject !== inbox) {
      reached.last = message;
      listener.onText(message.string());
      return;
    }
    // The server sends heartbeats (code 100), questions whether the consumer keeps up, and the news of its end.
    if (message.headers.code !== 100) quietTicks = QUIET_TICKS_MAX;
    const question = message.reply || message.headers.get("Nats-Consumer-Stalled");
    if (question && !connection.isClosed()) connection.publish(question);
  }

  return {
    async start(api) {
      subscription?.unsubscribe();
      inbox = nameInbox();
      subscription = connection.subscribe(inbox, { callback: onMessage });
      const heardAt = (reached.last && storedAt(reached.last)) ?? reached.startedAt;
      const info = await api.consumers.add(STREAM, {
        deliver_subject: inbox,
        filter_subject: listener.filter,
        ack_policy: AckPolicy.None,
        replay_policy: ReplayPolicy.Instant,
        ...(heardAt
          ? {
              deliver_policy: DeliverPolicy.StartTime,
              opt_start_time: new Date(heardAt.getTime() - REPLAY_MS).toISOString(),
            }
          : { deliver_policy: DeliverPolicy.New }),
        flow_control: true,
        idle_heartbeat: nanos(HEARTBEAT_MS),
        inactive_threshold: nanos(CONSUMER_IDLE_MS),
        mem_storage: true,
        num_replicas: 1,
      });
      reached.startedAt ??= new Date(info.created);
      quietTicks = 0;
      if (stopped) subscription.unsubscribe();
    },
    flowing: () => quietTicks < QUIET_TICKS_MAX,
    tick() {
      quietTicks++;
    },
    stop() {
      stopped = true;
      subscription?.unsubscribe();
    },
  };
}

/**
 * When the server stored a command. The reply subject has this time in nanoseconds (NATS ADR-15): as the eighth word of
 * the short form, `$JS.ACK.<stream>.<consumer>.<deliveries>.<seq>.<consumer seq>.<time>.<pending>`, and as the tenth of
 * the long form, which names domain and account before the stream.
 */
function storedAt(message: Msg): Date | undefined {
  const words = message.reply?.split(".") ?? [];
  const storedAtMs = Number(words[words.length === 9 ? 7 : 9]) / 1e6;
  return Number.isFinite(storedAtMs) ? new Date(storedAtMs) : undefined;
}

/**
 * Publishes with one acknowledgement under way at a time. The first command after an acknowledgement asks for the next
 * one. An acknowledgement speaks for every earlier command on the same connection. At a low rate each command is
 * confirmed by itself, at a high rate a whole window at once.
 */
function openAcknowledgements(
  connection: NatsConnection,
  inbox: string,
  counts: BusCounts,
  onLost: () => void,
) {
  let unaskedCount = 0;
  let windowNo = 0;
  let asked: { reply: string; commandCount: number; ticks: number } | undefined;

  connection.subscribe(`${inbox}.*`, {
    callback(error, message) {
      if (error || message.subject !== asked?.reply) return;
      if (isAcknowledgement(message)) asked = undefined;
      else lose(asked.commandCount);
    },
  });

  function lose(commandCount: number): void {
    asked = undefined;
    counts.unacknowledged += commandCount;
    onLost();
  }

  return {
    publish(subject: string, text: string): void {
      if (asked) {
        connection.publish(subject, text);
        unaskedCount++;
        return;
      }
      const reply = `${inbox}.${++windowNo}`;
      connection.publish(subject, text, { reply });
      asked = { reply, commandCount: unaskedCount + 1, ticks: 0 };
      unaskedCount = 0;
    },
    tick(): void {
      if (asked && ++asked.ticks > ACK_TICKS_MAX) lose(asked.commandCount);
    },
    end(): void {
      counts.unacknowledged += unaskedCount + (asked?.commandCount ?? 0);
      asked = undefined;
      unaskedCount = 0;
    },
  };
}

/** Any other answer is an error of the stream, or empty. An empty answer says that there is no stream. */
function isAcknowledgement(message: Msg): boolean {
  return message.data.length > 0 && !message.string().includes('"error"');
}
