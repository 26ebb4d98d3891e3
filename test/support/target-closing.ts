import net from "node:net";

/**
 * A target, as a program of its own, that closes kept connections without notice: after some milliseconds of idleness
 * (the first argument, 0 for never), and after some requests (the second, 0 for never). It prints its port. Once its
 * input ends it prints how many requests it has answered, and over how many connections.
 */

const [idleMs = 0, requestsMax = 0] = process.argv.slice(2).map(Number);
const ANSWER = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
/** A timer later than this means that the process stood still; requests that arrived meanwhile are read first. */
const LATE_MS = 20;

let answered = 0;
let connections = 0;
const server = net.createServer((socket) => {
  connections++;
  let requests = 0;
  let closing: NodeJS.Timeout | undefined;
  const closeLater = (waitMs: number) => {
    const dueAt = performance.now() + waitMs;
    closing = setTimeout(() => {
      if (performance.now() - dueAt > LATE_MS) closeLater(1);
      else socket.end();
    }, waitMs);
  };
  socket.on("error", () => socket.destroy());
  socket.on("close", () => clearTimeout(closing));
  socket.on("data", () => {
    clearTimeout(closing);
    answered++;
    socket.write(ANSWER);
    if (++requests === requestsMax) socket.end();
    else if (idleMs > 0) closeLater(idleMs);
  });
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as net.AddressInfo).port));
process.stdin.on("end", () => {
  console.log(answered, connections);
  process.exit();
});
process.stdin.resume();
