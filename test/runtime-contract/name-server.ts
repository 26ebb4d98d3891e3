import dgram from "node:dgram";

/**
 * A name server in a process of its own, on the port that it prints: names that begin with "silent" are never answered,
 * "absent" ones do not exist, all others have the one address.
 */

const ADDRESS = [192, 0, 2, 7];
const HEADER_BYTES = 12;
const RECEIVE_BUFFER_BYTES = 8_000_000;
const TYPE_A = 1;
const NAME_ERROR = 3;

const server = dgram.createSocket({ type: "udp4", recvBufferSize: RECEIVE_BUFFER_BYTES });
server.on("message", (query, { port, address }) => {
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
    ? [0xc0, HEADER_BYTES, 0, TYPE_A, 0, 1, 0, 0, 0, 0, 0, ADDRESS.length, ...ADDRESS]
    : [];
  server.send(Buffer.concat([Buffer.from(head), question, Buffer.from(answer)]), port, address);
});
server.bind(0, "127.0.0.1", () => console.log(server.address().port));
