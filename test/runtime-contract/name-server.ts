import dgram from "node:dgram";
import { getServers, setServers } from "node:dns";

/**
 * Makes this process ask a name server of the tests, which is a process of its own. Names that begin with "silent" are
 * never answered, names that begin with "absent" do not exist, and all others have the IPv4 address `address`.
 */
export async function startNameServer(address: string): Promise<{ stop(): Promise<void> }> {
  const before = getServers();
  const server = Bun.spawn([process.execPath, import.meta.path, address], { stdout: "pipe" });
  const { value } = await server.stdout.getReader().read();
  setServers([`127.0.0.1:${Number(new TextDecoder().decode(value))}`]);
  return {
    async stop() {
      setServers(before);
      server.kill();
      await server.exited;
    },
  };
}

const HEADER_BYTES = 12;
const RECEIVE_BUFFER_BYTES = 8_000_000;
const TYPE_A = 1;
const NAME_ERROR = 3;

if (import.meta.main) serve((process.argv[2] ?? "").split(".").map(Number));

/** Runs the name server. Prints its port once it listens. */
function serve(address: number[]): void {
  const server = dgram.createSocket({ type: "udp4", recvBufferSize: RECEIVE_BUFFER_BYTES });
  server.on("message", (query, asker) => {
    // The question is the name, as labels with their lengths, then its type and class (RFC 1035, section 4.1.2).
    let end = HEADER_BYTES;
    while ((query[end] ?? 0) > 0) end += 1 + (query[end] ?? 0);
    const question = query.subarray(HEADER_BYTES, end + 5);
    const firstLabel = question.subarray(1, 1 + (question[0] ?? 0)).toString();
    if (firstLabel.startsWith("silent")) return;
    const isAbsent = firstLabel.startsWith("absent");
    const hasAnswer = !isAbsent && query.readUInt16BE(end + 1) === TYPE_A;
    const head = [
      ...query.subarray(0, 2),
      0x81,
      0x80 | (isAbsent ? NAME_ERROR : 0),
      0,
      1,
      0,
      hasAnswer ? 1 : 0,
      0,
      0,
      0,
      0,
    ];
    const answer = hasAnswer
      ? [0xc0, HEADER_BYTES, 0, TYPE_A, 0, 1, 0, 0, 0, 0, 0, address.length, ...address]
      : [];
    server.send(Buffer.concat([Buffer.from(head), question, Buffer.from(answer)]), asker.port, asker.address);
  });
  server.bind(0, "127.0.0.1", () => console.log(server.address().port));
}
