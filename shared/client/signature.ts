import { bytesOfBase64 } from "./base64.ts";

/** A request as a server received it: an attempt of a job, or an event. */
export interface ReceivedRequest {
  /** The raw body. A body that was parsed and written again has other bytes, which no signature fits. */
  body: string | Uint8Array;
  /** A `Headers`, or what Node's http calls `request.headers`. */
  headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>;
}

export interface SignatureRules {
  /** Whole secrets, `whsec_...`. Give several while one replaces another. */
  secrets: string | readonly string[] | undefined;
  /**
   * The signature that counts. `service-signature` is the HMAC of the body alone and still fits a replayed request, so
   * use it only if the `webhook-*` headers do not arrive.
   */
  scheme?: "standard-webhooks" | "service-signature" | undefined;
  /** How far the time in the request may differ from the time here. Default 300. */
  toleranceSeconds?: number | undefined;
  /** The time here, in milliseconds since 1970. */
  now?: (() => number) | undefined;
}

/** The request does not come from the service, or its time is too far from the time here. */
export class SignatureError extends Error {
  override name = "SignatureError";
}

const SECRET_PREFIX = "whsec_";
export const TOLERANCE_SECONDS = 300;

/**
 * Returns the text of the body if a signature of the request fits one of the secrets: parse this text, so that nothing
 * unsigned is parsed. Throws SignatureError, and TypeError for arguments with which no request could pass.
 * Standard Webhooks 1.0, and the HMAC-SHA256 of Service-Signature.
 */
export async function verifySignature(request: ReceivedRequest, rules: SignatureRules): Promise<string> {
  const body = readBody(request.body);
  const secrets = readSecrets(rules.secrets);
  if (rules.scheme === "service-signature") await verifyBodyOnly(body, request.headers, secrets);
  else await verifyStandard(body, request.headers, secrets, rules);
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(body);
}

async function verifyStandard(
  body: Uint8Array<ArrayBuffer>,
  headers: ReceivedRequest["headers"],
  secrets: readonly string[],
  { toleranceSeconds = TOLERANCE_SECONDS, now = Date.now }: SignatureRules,
): Promise<void> {
  const id = readHeader(headers, "webhook-id");
  const timestamp = readHeader(headers, "webhook-timestamp");
  const signatures = readHeader(headers, "webhook-signature").split(" ");
  if (!/^[0-9]{1,12}$/.test(timestamp))
    throw new SignatureError("webhook-timestamp is no number of seconds.");
  const awaySeconds = Math.abs(Math.floor(now() / 1_000) - Number(timestamp));
  if (!(awaySeconds <= toleranceSeconds)) {
    throw new SignatureError(`webhook-timestamp is ${awaySeconds} s away from the time here.`);
  }
  const head = encoder.encode(`${id}.${timestamp}.`);
  const signed = new Uint8Array(head.length + body.length);
  signed.set(head);
  signed.set(body, head.length);
  const given = signatures.map((signature) => (signature.startsWith("v1,") ? signature.slice(3) : ""));
  await findMatch(secrets.map(standardKey), signed, given.map(bytesOrNone));
}

async function verifyBodyOnly(
  body: Uint8Array<ArrayBuffer>,
  headers: ReceivedRequest["headers"],
  secrets: readonly string[],
): Promise<void> {
  const given = bytesOfHex(readHeader(headers, "service-signature"));
  await findMatch(
    secrets.map((secret) => encoder.encode(secret)),
    body,
    [given],
  );
}

/** Throws SignatureError if none of the signatures was made with any of the keys. */
async function findMatch(
  keys: readonly Uint8Array<ArrayBuffer>[],
  signed: Uint8Array<ArrayBuffer>,
  given: readonly Uint8Array[],
): Promise<void> {
  const expected = await Promise.all(keys.map((key) => hmac(key, signed)));
  let matchCount = 0;
  for (const wanted of expected) {
    for (const signature of given) matchCount += isEqual(wanted, signature) ? 1 : 0;
  }
  if (matchCount === 0) throw new SignatureError("No signature fits the body and any of the secrets.");
}

async function hmac(key: Uint8Array<ArrayBuffer>, data: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const imported = await crypto.subtle.importKey("raw", key, algorithm, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, data));
}

/** Compares in constant time, so that timing does not tell where two signatures differ. Their length is no secret. */
function isEqual(wanted: Uint8Array, given: Uint8Array): boolean {
  if (wanted.length !== given.length) return false;
  let difference = 0;
  for (let i = 0; i < wanted.length; i++) difference |= (wanted[i] ?? 0) ^ (given[i] ?? 0);
  return difference === 0;
}

const encoder = new TextEncoder();

function readBody(body: string | Uint8Array): Uint8Array<ArrayBuffer> {
  if (typeof body === "string") return encoder.encode(body);
  if (ArrayBuffer.isView(body)) return new Uint8Array(body);
  throw new TypeError("body must be the raw body, as text or bytes, before anything has parsed it.");
}

/** Throws TypeError for a text that is no secret of the service. */
export function readSecrets(given: string | readonly string[] | undefined): readonly string[] {
  const secrets = [given].flat();
  const areSecrets = secrets.every(
    (secret) => secret?.startsWith(SECRET_PREFIX) && standardKey(secret).length > 0,
  );
  if (secrets.length > 0 && areSecrets) return secrets as readonly string[];
  throw new TypeError(
    `secrets must be one or more signing secrets, ${SECRET_PREFIX} included: project.rotateSigningSecret() shows that of attempts, webhooks.create() that of an endpoint. If it comes from an environment variable, set that variable first.`,
  );
}

function standardKey(secret: string): Uint8Array<ArrayBuffer> {
  return bytesOrNone(secret.slice(SECRET_PREFIX.length));
}

/** Throws SignatureError if the request has none. */
function readHeader(headers: ReceivedRequest["headers"], name: string): string {
  const value = findHeader(headers, name);
  if (value !== null) return value;
  throw new SignatureError(`The request has no ${name}, or more than one.`);
}

/** Null if the request has none, or more than one. */
export function findHeader(headers: ReceivedRequest["headers"], name: string): string | null {
  const value = isHeaders(headers) ? headers.get(name) : findMember(headers, name);
  return typeof value === "string" && value !== "" ? value : null;
}

/** `instanceof` would not do, because tests and polyfills have `Headers` classes of their own. */
function isHeaders(headers: ReceivedRequest["headers"]): headers is Headers {
  return typeof headers.get === "function";
}

/** Frameworks differ in the case of header names. */
function findMember<Value>(members: Readonly<Record<string, Value>>, name: string): Value | undefined {
  const spelling = Object.keys(members).find((key) => key.toLowerCase() === name);
  return spelling === undefined ? undefined : members[spelling];
}

/** Empty if the text is no base64; no signature is empty. */
function bytesOrNone(text: string): Uint8Array<ArrayBuffer> {
  return bytesOfBase64(text) ?? new Uint8Array();
}

/** Empty if the text is no hexadecimal. */
function bytesOfHex(text: string): Uint8Array<ArrayBuffer> {
  if (!/^(?:[0-9a-f]{2})+$/.test(text)) return new Uint8Array();
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}
