import { describe, expect, test } from "bun:test";
import { createClient } from "../../shared/client/index.ts";

const options = { baseUrl: "https://jobs.example.com", apiKey: "svc_dev_x" };

describe("a client cannot be made", () => {
  test.each([
    ["apiKey", undefined, "apiKey is undefined: pass a key of the project"],
    ["apiKey", "", "apiKey is empty: pass a key of the project"],
    ["apiKey", null, "apiKey is null: pass a key of the project"],
    ["apiKey", 7, "apiKey is no text: pass a key of the project"],
    ["apiKey", "svc_dev_x\n", "without blanks"],
    ["baseUrl", undefined, "baseUrl is undefined: pass the address of the service"],
    ["baseUrl", "", "baseUrl is empty: pass the address of the service"],
    ["baseUrl", "jobs.example.com", "must be a whole URL such as https://jobs.example.com"],
    ["baseUrl", "ftp://jobs.example.com", "must be an https or http URL"],
    ["baseUrl", "https://me:secret@jobs.example.com", "without credentials"],
  ] as const)("with the %s %p, and says what to do", (name, value, sentence) => {
    const made = () => createClient({ ...options, [name]: value });
    expect(made).toThrow(TypeError);
    expect(made).toThrow(sentence);
  });

  test("with a key in place of the address, which no error shows", () => {
    expect(() => createClient({ ...options, baseUrl: "svc_live_secret" })).toThrow(/^(?!.*svc_live_secret)/);
  });
});
