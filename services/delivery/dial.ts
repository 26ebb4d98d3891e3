import { isIPv6, type LookupFunction, type Socket } from "node:net";
import { dns } from "bun";
// The bare name is replaced by a stub on Bun, which ignores `lookup` and timeouts without a word.
import { buildConnector } from "undici/index.js";
import { findOriginFault, mayDial, type TargetRules } from "../../shared/domain/target.ts";

export interface ResolvedAddress {
  address: string;
  family: 4 | 6;
}

/** Every address that a name stands for now, in the order in which they are to be tried. Throws if there is none. */
export type Resolve = (hostname: string) => Promise<ResolvedAddress[]>;

/** Name, connection and TLS together. Less than an attempt may outlive its deadline before others take it for lost. */
const CONNECT_TIMEOUT_MS = 10_000;
/**
 * What a host may send for one request: many times what is read of an answer, since chunks of one byte take six. It
 * bounds what is neither head nor body: interim answers, blanks, chunk extensions, a status line without end.
 */
const ANSWER_BYTES_MAX = 1_048_576;
/**
 * What the parser is given at a time. It goes on to the end of a piece whatever it finds: of every header beyond its limit
 * it makes an error with a stack, which held a node up for a fifth of a second where a piece was all that had arrived.
 */
const PIECE_BYTES_MAX = 4_096;
/** A connector is kept for each port, because the judgement depends on it and the lookup is not told. */
const CONNECTORS_MAX = 256;

/**
 * Connects to customers' hosts. The origin is judged again, since the rules may have changed since the URL was accepted,
 * and then every address that its name stands for at this moment: with one that may not be dialled, whoever owns the
 * name would choose which one is.
 */
export function createDialler(rules: TargetRules, resolve: Resolve = resolveName): buildConnector.connector {
  const connectors = new Map<number, buildConnector.connector>();
  return (options, callback) => {
    const { protocol, hostname } = options;
    const port = Number(options.port || (protocol === "https:" ? 443 : 80));
    const address = hostname.replace(/^\[|\]$/g, "");
    // An address in the URL is not looked up: this is the judgement on it.
    const fault = findOriginFault(
      { protocol, hostname: isIPv6(address) ? `[${address}]` : hostname, port },
      rules,
    );
    if (fault !== null) return callback(new Error(`The target may not be dialled: its URL ${fault}.`), null);
    let connect = connectors.get(port);
    if (connect === undefined) {
      if (connectors.size >= CONNECTORS_MAX) connectors.clear();
      connect = buildConnector({
        timeout: CONNECT_TIMEOUT_MS,
        allowH2: false,
        lookup: judgingLookup(port, rules, resolve),
      } as buildConnector.BuildOptions);
      connectors.set(port, connect);
    }
    const begunAt = performance.now();
    connect(options, (error, socket) => {
      if (error !== null) return callback(error, null);
      // A process that was frozen hears of its connections before its timers. Whatever waited for this one may have been
      // held to be lost since, and given to another node.
      if (performance.now() - begunAt > CONNECT_TIMEOUT_MS) {
        socket.destroy();
        return callback(new Error("The connection was made too late."), null);
      }
      boundAnswers(socket);
      callback(null, socket);
    });
  };
}

function judgingLookup(port: number, rules: TargetRules, resolve: Resolve): LookupFunction {
  return (hostname, options, callback) => {
    resolve(hostname).then(
      (addresses) => {
        const forbidden = addresses.find(({ address }) => !mayDial(address, port, rules));
        const [first] = addresses;
        if (forbidden !== undefined) callback(refusal(forbidden.address), []);
        else if (first === undefined) callback(new Error(`The name ${hostname} has no address.`), []);
        else if (options.all) callback(null, addresses);
        else callback(null, first.address, first.family);
      },
      (error: unknown) => callback(error instanceof Error ? error : new Error(String(error)), []),
    );
  };
}

/**
 * By c-ares, which waits for any number of names at once. The system's resolver holds a thread for each, and a few
 * names whose servers do not answer would keep all others waiting.
 */
async function resolveName(hostname: string): Promise<ResolvedAddress[]> {
  try {
    return await dns.lookup(hostname, { backend: "c-ares" });
  } catch (error) {
    const { code } = error as { code?: unknown };
    throw new Error(`The name ${hostname} could not be resolved (${String(code).replace(/^DNS_/, "")}).`);
  }
}

/**
 * Ends a connection on which more comes after a request than any answer that is read could take, and lets it be read in
 * small pieces, of which there are no more once it is closed.
 */
function boundAnswers(socket: Socket): void {
  let bytes = 0;
  const read = socket.read.bind(socket);
  socket.read = (size?: number) => {
    if (socket.destroyed) return null;
    const chunk = read(size ?? (Math.min(socket.readableLength, PIECE_BYTES_MAX) || undefined));
    bytes += chunk?.length ?? 0;
    if (bytes > ANSWER_BYTES_MAX && !socket.destroyed) {
      socket.destroy(new Error(`The target sent more than ${ANSWER_BYTES_MAX} bytes for one answer.`));
    }
    return chunk;
  };
  const write = socket.write.bind(socket) as (...args: unknown[]) => boolean;
  // One request at a time is on a socket, so whatever comes after its bytes is for it.
  socket.write = (...args: unknown[]) => {
    bytes = 0;
    return write(...args);
  };
}

const refusal = (address: string) =>
  new Error(`The address ${address} may not be dialled: it is not public, or this service's own.`);
