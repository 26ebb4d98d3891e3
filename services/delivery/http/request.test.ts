import { describe, expect, test } from "bun:test";
import { writeRequest } from "./request.ts";

describe("a request", () => {
  test("is a POST with the host, the length, the headers and the body, byte by byte", () => {
    const url = new URL("http://[::1]:8080/a%20b/?q=%C3%A9#fragment");
    expect(writeRequest(url, { "x-a": "1", "x-b": "2\t3" }, '{"größe":1}').toString()).toBe(
      'POST /a%20b/?q=%C3%A9 HTTP/1.1\r\nhost: [::1]:8080\r\nconnection: keep-alive\r\nx-a: 1\r\nx-b: 2\t3\r\ncontent-length: 13\r\n\r\n{"größe":1}',
    );
  });

  test("to the port of its scheme names no port", () => {
    expect(writeRequest(new URL("https://a.example:443/"), {}, "").toString()).toBe(
      "POST / HTTP/1.1\r\nhost: a.example\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n",
    );
  });

  test.each(["a\r\nx-b: 1", "a\nb", "a\rb", "a\u0000b", "a\u007f", "ä\u0100"])(
    "is refused with the value %j",
    (value) => {
      expect(() => writeRequest(new URL("http://a.example/"), { "x-a": value }, "")).toThrow("x-a");
    },
  );

  test("has one line for the path, whatever stood in the URL", () => {
    const url = new URL("http://a.example/a\r\nx-b: 1\r\n?c d\te#f");
    expect(writeRequest(url, {}, "").toString().split("\r\n")[0]).toBe("POST /ax-b:%201?c%20de HTTP/1.1");
  });
});
