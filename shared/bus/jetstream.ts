import {
  connect,
  createInbox,
  type NatsConnection,
  type NodeConnectionOptions,
} from "@nats-io/transport-node";
import type { Log } from "../platform/log.ts";
import { type Bus, type BusCounts, zeroCounts } from "./bus.ts";
import { openCommandStream, type Progress } from "./command-stream.ts";
import { busOver, type Listener } from "./wire.ts";

const CONNECT_TIMEOUT_MS = 2_000;
const RECONNECT_WAIT_MS = 250;
const CLOSE_WAIT_MS = 1_000;
const TICK_MS = 250;
/** After so many ticks without a pong, 2.5 s, the server counts as frozen. */
const PONG_TICKS_MAX = 10;
/** A pong is asked for after so many bytes at the latest. */
const UNCONFIRMED_BYTES_ASK = 256 * 1024;
/** Once so many bytes wait for a pong, the server takes too little, and further messages are dropped. */
const UNCONFIRMED_BYTES_MAX = 32 * 1024 * 1024;

/**
 * The bus over NATS: commands through JetStream, everything else as core messages. Returns after the first attempt to
 * connect, with or without success; it tries again for as long as the bus is open. Rejects only if the URL is malformed
 * (`nats://[user[:password]@]host[:port]`, or `tls:`; commas between several servers).
 *
 * The client's own reconnecting is off, and each connection is a new one. So "absent at the start", "lost" and "frozen"
 * are one case, and nothing is buffered for a server that is away. The client would notice a frozen server only at a
 * write, which such a server never takes.
 */
export async function openBus(url: string, log: Log): Promise<Bus> {
  const counts = zeroCounts();
  const options = connectionOptions(url);
  const listeners = new Set<Listener>();
  const progress: Progress = new WeakMap();
  const firstAttempt = Promise.withResolvers<void>();
  let link: Link | undefined;
  let closing = false;

  async function keepConnected(): Promise<void> {
    let toldUnreachable = false;
    while (!closing) {
      try {
        link = openLink(await connect(options), options.inboxPrefix, progress, counts, log);
        toldUnreachable = false;
        log.info({ server: link.server }, "bus connected");
        if (closing) link.sever("closed");
        for (const listener of listeners) link.add(listener);
        void link.settled.then(firstAttempt.resolve);
        const reason = await link.ended;
        if (!closing) log.warn({ reason }, "bus lost");
      } catch (error) {
        if (!toldUnreachable) log.warn({ err: error }, "bus unreachable");
        toldUnreachable = true;
      }
      link = undefined;
      firstAttempt.resolve();
      if (!closing) await Bun.sleep(RECONNECT_WAIT_MS);
    }
  }
  void keepConnected();
  await firstAttempt.promise;

  return busOver(
    {
      publish(subject, text, kept) {
        if (link) link.publish(subject, text, kept);
        else counts.dropped++;
      },
      listen(listener) {
        listeners.add(listener);
        link?.add(listener);
        return {
          unsubscribe() {
            listeners.delete(listener);
            link?.remove(listener);
          },
        };
      },
      get connected() {
        return link !== undefined;
      },
      async close() {
        closing = true;
        listeners.clear();
        const last = link;
        link = undefined;
        if (!last) return;
        const timeout = Promise.withResolvers<void>();
        const timer = setTimeout(timeout.resolve, CLOSE_WAIT_MS);
        await Promise.race([last.flush(), timeout.promise]);
        clearTimeout(timer);
        last.sever("closed");
      },
    },
    counts,
    log,
  );
}

/** One connection, from its opening to its end. */
interface Link {
  readonly server: string;
  /** Resolves after the first try to make the stream. */
  readonly settled: Promise<void>;
  /** Resolves with the reason. */
  readonly ended: Promise<string>;
  publish(subject: string, text: string, kept: boolean): void;
  add(listener: Listener): void;
  remove(listener: Listener): void;
  /** Resolves when the server has taken all sent messages, or the connection has ended. */
  flush(): Promise<void>;
  sever(reason: string): void;
}

function openLink(
  connection: NatsConnection,
  inboxPrefix: string | undefined,
  progress: Progress,
  counts: BusCounts,
  log: Log,
): Link {
  const stream = openCommandStream(connection, () => createInbox(inboxPrefix), progress, counts, log);
  const unsubscribers = new Map<Listener, () => void>();
  const ended = Promise.withResolvers<string>();
  let unconfirmedBytes = 0;
  let pongTicks: number | undefined;

  /** One ping is under way at a time. Its pong says that the server has taken all that was sent before it. */
  function askForPong(): void {
    pongTicks = 0;
    const askedBytes = unconfirmedBytes;
    connection.flush().then(
      () => {
        unconfirmedBytes -= askedBytes;
        pongTicks = undefined;
      },
      (error) => sever(String(error)),
    );
  }

  // Ticks are counted and not milliseconds, so that a process that stood still does not take the server for frozen.
  const ticking = setInterval(() => {
    stream.tick();
    if (pongTicks === undefined) askForPong();
    else if (++pongTicks > PONG_TICKS_MAX) sever("the server does not answer");
  }, TICK_MS);

  function sever(reason: string): void {
    clearInterval(ticking);
    stream.end();
    ended.resolve(reason);
    connection.close().catch(() => {
      // A connection that is already broken has nothing left to close.
    });
  }
  void connection.closed().then((error) => sever(error ? String(error) : "closed by the server"));

  return {
    server: connection.getServer(),
    settled: stream.restore(),
    ended: ended.promise,
    publish(subject, text, kept) {
      if (unconfirmedBytes > UNCONFIRMED_BYTES_MAX) {
        counts.dropped++;
        return;
      }
      try {
        if (kept) stream.publish(subject, text);
        else connection.publish(subject, text);
      } catch {
        // The message is larger than the server allows, or the connection has ended in this very turn.
        counts.dropped++;
        return;
      }
      unconfirmedBytes += text.length;
      if (unconfirmedBytes > UNCONFIRMED_BYTES_ASK && pongTicks === undefined) askForPong();
    },
    add(listener) {
      // The connection may have ended in this very turn; the next one takes the listener over.
      if (connection.isClosed()) return;
      if (listener.kept) {
        unsubscribers.set(listener, stream.follow(listener));
        return;
      }
      const subscription = connection.subscribe(listener.filter, {
        callback(error, message) {
          if (error) log.error({ filter: listener.filter, err: error }, "bus subscription refused");
          else listener.onText(message.string());
        },
      });
      unsubscribers.set(listener, () => subscription.unsubscribe());
    },
    remove(listener) {
      unsubscribers.get(listener)?.();
      unsubscribers.delete(listener);
    },
    flush: async () => {
      await Promise.race([connection.flush().catch((error) => sever(String(error))), ended.promise]);
    },
    sever,
  };
}

/** A login that can be one word of a subject. */
const SUBJECT_WORD = /^[A-Za-z0-9_-]+$/;

/**
 * The client itself reads only host and port of a URL. The URL of the first server says how to log in to all of them.
 * Answers come to inboxes below the name of the login, so that its permissions need not open the inboxes of others.
 */
function connectionOptions(url: string): NodeConnectionOptions {
  const servers = url.split(",");
  const { protocol, username, password } = new URL(servers[0] ?? url);
  const user = decodeURIComponent(username);
  return {
    servers: servers.map((server) => new URL(server).host),
    ...(protocol === "tls:" && { tls: {} }),
    ...(user !== "" && (password === "" ? { token: user } : { user, pass: decodeURIComponent(password) })),
    ...(password !== "" && SUBJECT_WORD.test(user) && { inboxPrefix: `_INBOX.${user}` }),
    timeout: CONNECT_TIMEOUT_MS,
    reconnect: false,
    noAsyncTraces: true,
  };
}
