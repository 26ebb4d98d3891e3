import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { Webhook } from "standardwebhooks";
import { signHeaders } from "../../services/delivery/sign.ts";
import { SignatureError, verifySignature } from "../../shared/client/index.ts";
import { makeSecret } from "../../shared/domain/signing.ts";

const SENT_AT = 1_790_000_000_000;
const TOLERANCE_MS = 300_000;
const [secret, newer, foreign] = [makeSecret(randomBytes), makeSecret(randomBytes), makeSecret(randomBytes)];
const body = '{"größe":"🎡","n":9007199254740993,"s":"a.b"}';

/** The headers that the service would send. */
const headersOf = (...secrets: string[]) => signHeaders(body, { id: "run_1", sentAt: SENT_AT, secrets });
const verify = (
  headers: Parameters<typeof verifySignature>[0]["headers"],
  rules: Partial<Parameters<typeof verifySignature>[1]> = {},
  text: string | Uint8Array = body,
) => verifySignature({ body: text, headers }, { secrets: secret, now: () => SENT_AT, ...rules });
const failureOf = (verified: Promise<string>) =>
  verified.then(
    (text) => `it was taken: ${text}`,
    (error: unknown) => error,
  );

describe("the client's verification accepts a request", () => {
  test.each(["standard-webhooks", "service-signature"] as const)("by its %s", async (scheme) => {
    expect(await verify(headersOf(secret), { scheme })).toBe(body);
    expect(await verify(headersOf(secret), { scheme }, new TextEncoder().encode(body))).toBe(body);
    expect(await verify(headersOf(secret), { scheme }, Buffer.from(body))).toBe(body);
  });

  test("from any object that holds its headers", async () => {
    const headers = headersOf(secret);
    const titled = Object.fromEntries(
      Object.entries(headers).map(([name, value]) => [name.replace(/^webhook/, "Webhook"), value]),
    );
    for (const held of [headers, new Headers(headers), titled, { ...headers, cookie: ["a", "b"] }]) {
      expect(await verify(held)).toBe(body);
    }
  });

  test("during a rotation, with the old secret, the new one or both", async () => {
    const headers = headersOf(newer, secret);
    for (const secrets of [secret, newer, [secret, newer], [foreign, secret]]) {
      expect(await verify(headers, { secrets })).toBe(body);
    }
    expect(await verify(headers, { secrets: [secret, newer], scheme: "service-signature" })).toBe(body);
  });

  test("up to five minutes before and after its time", async () => {
    for (const now of [SENT_AT - TOLERANCE_MS, SENT_AT + TOLERANCE_MS + 999]) {
      expect(await verify(headersOf(secret), { now: () => now })).toBe(body);
    }
    for (const now of [SENT_AT - TOLERANCE_MS - 1_000, SENT_AT + TOLERANCE_MS + 1_000]) {
      expect(await failureOf(verify(headersOf(secret), { now: () => now }))).toBeInstanceOf(SignatureError);
    }
    expect(await verify(headersOf(secret), { now: () => SENT_AT + 900_000, toleranceSeconds: 900 })).toBe(
      body,
    );
  });
});

describe("the client's verification refuses a request", () => {
  const [good = ""] = [headersOf(secret)["webhook-signature"]];
  const hash = new Bun.CryptoHasher("sha256").update(body).digest("base64");
  test.each<[string, { changed?: Record<string, string>; text?: string }]>([
    ["with another body", { text: body.replace("3", "4") }],
    ["with one more blank", { text: `${body} ` }],
    ["with another id", { changed: { "webhook-id": "run_2" } }],
    ["with another time", { changed: { "webhook-timestamp": String(SENT_AT / 1_000 + 1) } }],
    ["without an id", { changed: { "webhook-id": "" } }],
    ["without a time", { changed: { "webhook-timestamp": "" } }],
    ["with a time that is not a number", { changed: { "webhook-timestamp": "NaN" } }],
    ["with a time before 1970", { changed: { "webhook-timestamp": "-1" } }],
    ["without a signature", { changed: { "webhook-signature": "" } }],
    ["with half a signature", { changed: { "webhook-signature": "v1," } }],
    ["with a signature that is no base64", { changed: { "webhook-signature": "v1,*" } }],
    ["with a signature of another version", { changed: { "webhook-signature": good.replace("v1", "v1a") } }],
    ["with a bare signature", { changed: { "webhook-signature": good.replace("v1,", "") } }],
    ["with the body's own hash", { changed: { "webhook-signature": `v1,${hash}` } }],
  ])("%s", async (_, { changed = {}, text = body }) => {
    const headers = { ...headersOf(secret), ...changed };
    expect(await failureOf(verify(headers, {}, text))).toBeInstanceOf(SignatureError);
  });

  test("with another secret's signature", async () => {
    for (const scheme of ["standard-webhooks", "service-signature"] as const) {
      expect(await failureOf(verify(headersOf(foreign), { scheme }))).toBeInstanceOf(SignatureError);
    }
  });

  test("with any bit of its signature changed", async () => {
    const [, base64 = ""] = headersOf(secret)["webhook-signature"]?.split(",") ?? [];
    const bytes = Uint8Array.fromBase64(base64);
    for (let bit = 0; bit < bytes.length * 8; bit++) {
      const changed = bytes.slice();
      changed[bit >> 3] = (changed[bit >> 3] ?? 0) ^ (1 << (bit & 7));
      const headers = { ...headersOf(secret), "webhook-signature": `v1,${changed.toBase64()}` };
      expect(await failureOf(verify(headers))).toBeInstanceOf(SignatureError);
    }
  });

  test("without its time, which somebody left out to send the request again later", async () => {
    const { "service-signature": alone = "" } = headersOf(secret);
    expect(await failureOf(verify({ "service-signature": alone }))).toBeInstanceOf(SignatureError);
    expect(await verify({ "service-signature": alone }, { scheme: "service-signature" })).toBe(body);
  });

  test.each(["", "x", "00", "0".repeat(64)])("with an invalid Service-Signature: %s", async (given) => {
    const refused = verify({ "service-signature": given }, { scheme: "service-signature" });
    expect(await failureOf(refused)).toBeInstanceOf(SignatureError);
  });

  test("with impossible arguments, by a TypeError", async () => {
    for (const secrets of [[], "", "whsec_", "whsec_*", [secret, secret.slice(6)], "secret"]) {
      expect(await failureOf(verify(headersOf(secret), { secrets }))).toBeInstanceOf(TypeError);
    }
    const parsed = JSON.parse(body) as string;
    expect(await failureOf(verify(headersOf(secret), {}, parsed))).toBeInstanceOf(TypeError);
  });
});

describe("the client's verification", () => {
  const library = new Webhook(secret);
  const now = () => Date.now();

  test("accepts signatures of the Standard Webhooks library", async () => {
    const sentAt = new Date();
    const headers = {
      "webhook-id": "evt_1",
      "webhook-timestamp": String(Math.floor(sentAt.getTime() / 1_000)),
      "webhook-signature": library.sign("evt_1", sentAt, body),
    };
    expect(await verify(headers, { now })).toBe(body);
  });

  test("accepts the service's signatures, as the Standard Webhooks library does", async () => {
    const headers = signHeaders(body, { id: "evt_1", sentAt: Date.now(), secrets: [newer, secret] });
    expect(library.verify(body, headers)).toEqual(JSON.parse(body));
    expect(await verify(headers, { now })).toBe(body);
    expect(() => library.verify(`${body} `, headers)).toThrow();
    expect(await failureOf(verify(headers, { now }, `${body} `))).toBeInstanceOf(SignatureError);
  });
});

describe("a target that verifies", () => {
  let server: ReturnType<typeof Bun.serve>;
  beforeAll(() => {
    server = Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      async fetch(request) {
        const received = { body: await request.text(), headers: request.headers };
        const text = await verifySignature(received, { secrets: secret }).catch(() => null);
        return text === null ? new Response(null, { status: 401 }) : Response.json(JSON.parse(text));
      },
    });
  });
  afterAll(() => server.stop(true));

  test("tells requests of the service from all others", async () => {
    const send = (headers: Record<string, string>) => fetch(server.url, { method: "POST", body, headers });
    const sentAt = Date.now();
    const signed = await send(signHeaders(body, { id: "run_1", sentAt, secrets: [secret] }));
    expect(await signed.json()).toEqual(JSON.parse(body));
    expect((await send({})).status).toBe(401);
    expect((await send(signHeaders(body, { id: "run_1", sentAt, secrets: [foreign] }))).status).toBe(401);
  });
});
