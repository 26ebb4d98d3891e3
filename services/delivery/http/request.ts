/** A field's value must not hold a line break, which would begin another field, or a character beyond Latin-1. */
const UNSAFE = /[^\t\x20-\x7e\x80-\xff]/;

/** One POST as it goes over the wire, in one piece. Throws if a header could be read as two. */
export function writeRequest(url: URL, headers: Record<string, string>, body: string): Buffer {
  let head = `POST ${url.pathname}${url.search} HTTP/1.1\r\nhost: ${url.host}\r\nconnection: keep-alive\r\n`;
  for (const name in headers) {
    const value = headers[name] ?? "";
    if (UNSAFE.test(value)) throw new Error(`The header ${name} holds what may not be sent.`);
    head += `${name}: ${value}\r\n`;
  }
  const bodyBytes = Buffer.byteLength(body);
  head += `content-length: ${bodyBytes}\r\n\r\n`;
  const bytes = Buffer.allocUnsafe(head.length + bodyBytes);
  bytes.write(head, 0, "latin1");
  bytes.write(body, head.length, "utf8");
  return bytes;
}
