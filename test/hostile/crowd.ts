import net from "node:net";

const ASK_AGAIN_MS = 1_000;

/**
 * A program: many clients of a gateway that send the same GET at once. Its arguments are the port, the path, the key,
 * the number of clients, and whether they read their answers. Each line of its standard input starts a wave. For each
 * answered wave the program prints the number of answers by status. For clients that do not read it prints "sent", and
 * they keep their connections until the program ends.
 */
const [port = "", path = "", key = "", count = "", manner = ""] = process.argv.slice(2);
const request = `GET ${path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer ${key}\r\nConnection: close\r\n\r\n`;

function ask(): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  let status = "";
  const socket = net.connect(Number(port), "127.0.0.1", () => socket.write(request));
  socket.on("data", (chunk: Buffer) => {
    if (status === "") status = chunk.toString("latin1", "HTTP/1.1 ".length, "HTTP/1.1 200".length);
  });
  socket.on("error", () => undefined);
  socket.on("close", () => resolve(status));
  return promise;
}

/** Reads the first bytes of an answer and no more. A client that is refused or cut off tries again. */
function hold(): void {
  const again = () => setTimeout(hold, ASK_AGAIN_MS);
  const socket = net.connect(Number(port), "127.0.0.1", () => socket.write(request));
  socket.once("data", (chunk: Buffer) => {
    if (chunk.toString("latin1").startsWith("HTTP/1.1 200")) socket.pause();
    else socket.destroy();
  });
  socket.on("error", () => socket.destroy());
  socket.on("close", again);
}

const all = <Result>(act: () => Result) => Array.from({ length: Number(count) }, act);

for await (const _ of console) {
  if (manner === "reads") {
    const statuses = Object.groupBy(await Promise.all(all(ask)), (status) => status);
    const counts = Object.entries(statuses).map(([status, found = []]) => [status, found.length]);
    console.log(JSON.stringify(Object.fromEntries(counts)));
  } else {
    all(hold);
    console.log("sent");
  }
}
