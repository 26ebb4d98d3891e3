import net, { type Socket } from "node:net";
import tls from "node:tls";

/** A connection that is being made. Once it is canceled, it calls neither function of its `Reached`. */
export interface Reaching {
  cancel(): void;
}

/** One of the two is called, once. */
export interface Reached {
  onReached(socket: Socket): void;
  onFailed(error: Error): void;
}

/** When an address has not answered for this long, the next one is tried beside it (RFC 8305, section 5). */
const NEXT_ADDRESS_AFTER_MS = 250;
/** A name may have a thousand addresses. Only the first few are tried. */
const ADDRESSES_MAX = 4;
/** A server sends about two session tickets. They come beside the answer, so no other limit bounds them. */
const TICKETS_MAX = 32;

/** Connects to one of the addresses, and to no other. For https the certificate is verified for the host. */
export function reach(
  addresses: readonly string[],
  { hostname, port, isSecure }: { hostname: string; port: number; isSecure: boolean },
  { onReached, onFailed }: Reached,
): Reaching {
  let securing: Reaching | null = null;
  const reaching = reachFirst(addresses.slice(0, ADDRESSES_MAX), port, {
    onFailed,
    onReached(socket) {
      if (!isSecure) onReached(socket);
      else securing = secure(socket, hostname, { onReached, onFailed });
    },
  });
  return {
    cancel() {
      reaching.cancel();
      securing?.cancel();
    },
  };
}

function reachFirst(addresses: readonly string[], port: number, { onReached, onFailed }: Reached): Reaching {
  const open = new Set<Socket>();
  let next = 0;
  let timer: NodeJS.Timeout | undefined;
  function tryNext(): void {
    clearTimeout(timer);
    const host = addresses[next];
    if (host === undefined) return;
    next++;
    const socket = net.connect({ host, port, noDelay: true });
    open.add(socket);
    socket.once("connect", () => {
      if (!open.delete(socket)) return;
      socket.off("error", onError);
      cancel();
      onReached(socket);
    });
    const onError = (error: Error) => {
      if (!open.delete(socket)) return;
      if (next < addresses.length) tryNext();
      else if (open.size === 0) onFailed(error);
    };
    socket.on("error", onError);
    if (next < addresses.length) timer = setTimeout(tryNext, NEXT_ADDRESS_AFTER_MS);
  }
  function cancel(): void {
    clearTimeout(timer);
    next = addresses.length;
    const left = [...open];
    open.clear();
    for (const socket of left) socket.destroy();
  }
  tryNext();
  return { cancel };
}

function secure(socket: Socket, hostname: string, { onReached, onFailed }: Reached): Reaching {
  const secured = tls.connect({
    socket,
    host: hostname,
    // RFC 6066, section 3: SNI holds names and no addresses. The certificate of an address is checked for the address.
    // A name goes without its last dot, since some servers break the handshake off if it has one.
    ...(net.isIP(hostname) === 0 ? { servername: hostname.replace(/\.$/, "") } : {}),
    ALPNProtocols: ["http/1.1"],
    rejectUnauthorized: true,
  });
  let isOver = false;
  const fail = (error: Error) => {
    if (isOver) return;
    isOver = true;
    secured.destroy();
    onFailed(error);
  };
  const onClose = () => fail(new Error("The target closed the connection in the TLS handshake."));
  secured.on("error", fail);
  // A reset in the handshake may show on the socket below alone.
  socket.on("error", fail);
  secured.on("close", onClose);
  let ticketCount = 0;
  secured.on("session", () => {
    if (++ticketCount <= TICKETS_MAX) return;
    const error = new Error("The target sent session tickets without end");
    secured.destroy(Object.assign(error, { code: "ERR_TLS_TICKETS" }));
  });
  secured.once("secureConnect", () => {
    if (isOver) return;
    if (!secured.authorized) return fail(new Error("The target's certificate could not be verified."));
    isOver = true;
    secured.off("error", fail).off("close", onClose);
    onReached(secured);
  });
  return {
    cancel() {
      isOver = true;
      secured.destroy();
    },
  };
}
