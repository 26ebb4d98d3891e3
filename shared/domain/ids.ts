/**
 * Ids: a prefix and 26 characters of lower-case Crockford base32, which spell 128 bits in the layout of a ULID
 * (48 bits of milliseconds since 1970, then 80 random bits). Text order, number order and time order agree.
 * The database keeps the 128 bits as a uuid.
 */

export const JOB_PREFIX = "job_";
export const RUN_PREFIX = "run_";
export const SCHEDULE_PREFIX = "sch_";
export const PROJECT_PREFIX = "prj_";
export const WEBHOOK_PREFIX = "whk_";
export const EVENT_PREFIX = "evt_";
export const DELIVERY_PREFIX = "dlv_";
export const ATTEMPT_PREFIX = "dat_";
export const KEY_PREFIX = "key_";
export const BULK_PREFIX = "blk_";
/** Only the audit shows the ids of signing secrets. */
export const SIGNING_SECRET_PREFIX = "sec_";
export const REQUEST_PREFIX = "req_";

export interface IdSource {
  /**
   * A new id. Its time is `now` (milliseconds since 1970). If the clock went back by BACK_MS_MAX or less, its time is that
   * of the id before it, so that it is greater. If the clock was set back further, ids begin anew at its time.
   */
  next(prefix: string, now: number): string;
}

const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";
const BODY_LENGTH = 26;
const TIME_LENGTH = 10;
export const ID_BODY_PATTERN = /^[0-7][0-9a-hjkmnp-tv-z]{25}$/;

/** The random bits are held as four numbers of 20 bits, each exactly four characters long. */
const WORD_SIZE = 2 ** 20;
const FIRST_WORD = "0000";
/** A node's estimate of the database's clock goes back by less than this while nobody sets that clock. */
const BACK_MS_MAX = 10_000;
const BYTES_PER_ID = 10;
/** Random bytes are drawn in bulk, because a call for ten of them costs as much as one for a thousand. */
const BYTES_PER_DRAW = BYTES_PER_ID * 128;

/** `randomBytes` gives that many cryptographically random bytes. */
export function createIdSource(randomBytes: (count: number) => Uint8Array): IdSource {
  let pool: Uint8Array = new Uint8Array(0);
  let drawn = 0;
  let time = -1;
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;

  function byte(): number {
    if (drawn >= pool.length) {
      pool = randomBytes(BYTES_PER_DRAW);
      drawn = 0;
    }
    return pool[drawn++] ?? 0;
  }

  function word(): number {
    return ((byte() & 15) << 16) | (byte() << 8) | byte();
  }

  return {
    next(prefix, now) {
      // `now` may have a fraction, because nodes follow the database's clock by a measured offset.
      const nowMs = Math.floor(now);
      if (nowMs > time || nowMs < time - BACK_MS_MAX) {
        time = nowMs;
        a = word();
        b = word();
        c = word();
        d = word();
      } else {
        // The step is random, so that nobody can guess the other ids of a batch from one of them.
        d += 1 + word();
        c += d >= WORD_SIZE ? 1 : 0;
        b += c >= WORD_SIZE ? 1 : 0;
        a += b >= WORD_SIZE ? 1 : 0;
        time += a >= WORD_SIZE ? 1 : 0;
        a %= WORD_SIZE;
        b %= WORD_SIZE;
        c %= WORD_SIZE;
        d %= WORD_SIZE;
      }
      return prefix + timeText(time) + wordText(a) + wordText(b) + wordText(c) + wordText(d);
    },
  };
}

/** Returns the text itself if it is an id with this prefix in canonical spelling, else null. */
export function parseId(prefix: string, text: string): string | null {
  if (text.length !== prefix.length + BODY_LENGTH || !text.startsWith(prefix)) return null;
  return ID_BODY_PATTERN.test(text.slice(prefix.length)) ? text : null;
}

/** The id of the same 128 bits under another prefix. */
export function retypeId(id: string, prefix: string): string {
  return prefix + id.slice(-BODY_LENGTH);
}

/** Whether two ids, of whatever kinds, have the same 128 bits. */
export function haveSameBits(a: string, b: string): boolean {
  return a.endsWith(b.slice(-BODY_LENGTH));
}

/** It is greater than every id of any kind. */
export const NEWEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/** It is not greater than any id of any kind. */
export const OLDEST_UUID = "00000000-0000-0000-0000-000000000000";

/** The smallest id of an instant (milliseconds since 1970). Every id of that time or later is at least as great. */
export function firstIdAt(prefix: string, at: number): string {
  return prefix + timeText(Math.ceil(at)) + FIRST_WORD.repeat(4);
}

/**
 * The ids whose time lies between two instants (milliseconds since 1970), both left out: from `fromId` on, and before
 * `beforeId`. Null is no bound. No id is from before 1970.
 */
export function idsBetween(
  prefix: string,
  { after, before }: { after: number | null; before: number | null },
): { fromId: string | null; beforeId: string | null } {
  return {
    fromId: after === null ? null : firstIdAt(prefix, Math.max(0, after + 1)),
    beforeId: before === null ? null : firstIdAt(prefix, Math.max(0, before)),
  };
}

/** The time of an id in milliseconds since 1970. It is the created_at of its resource, so rows have no column for that. */
export function idTimeMs(id: string): number {
  const start = id.length - BODY_LENGTH;
  let time = 0;
  for (let i = start; i < start + TIME_LENGTH; i++) time = time * 32 + valueAt(id, i);
  return time;
}

const VALUES = new Uint8Array(128);
const HEX_VALUES = new Uint8Array(128);
const CODES = new Uint8Array(32);
const HEX_CODES = new Uint8Array(16);
for (let value = 0; value < 32; value++) {
  const code = ALPHABET.charCodeAt(value);
  VALUES[code] = value;
  CODES[value] = code;
}
for (let value = 0; value < 16; value++) {
  const code = "0123456789abcdef".charCodeAt(value);
  HEX_VALUES[code] = value;
  HEX_CODES[value] = code;
}
const DASH = 45;
// Buffers for the life of the process: writing text into bytes costs half as much as joining pieces of text.
const uuidBytes = Buffer.alloc(36, DASH);
const bodyBytes = Buffer.alloc(BODY_LENGTH);

/** The id must have passed `parseId` or come from the database. */
export function idToUuid(id: string): string {
  const start = id.length - BODY_LENGTH;
  let bits = valueAt(id, start);
  let bitCount = 3;
  let at = 0;
  for (let i = start + 1; i < id.length; i++) {
    bits = (bits << 5) | valueAt(id, i);
    bitCount += 5;
    while (bitCount >= 4) {
      bitCount -= 4;
      if (at === 8 || at === 13 || at === 18 || at === 23) at++;
      uuidBytes[at++] = HEX_CODES[(bits >>> bitCount) & 15] ?? 0;
    }
    bits &= 15;
  }
  return uuidBytes.toString("latin1");
}

/** Writes the 128 bits of an id as 16 bytes. The id must be one that idToUuid takes. */
export function writeIdBytes(id: string, bytes: Uint8Array, at: number): void {
  const start = id.length - BODY_LENGTH;
  let bits = valueAt(id, start);
  let bitCount = 3;
  let end = at;
  for (let i = start + 1; i < id.length; i++) {
    bits = (bits << 5) | valueAt(id, i);
    bitCount += 5;
    if (bitCount < 8) continue;
    bitCount -= 8;
    bytes[end++] = bits >>> bitCount;
    bits &= (1 << bitCount) - 1;
  }
}

/** The uuid must be in the form that Postgres prints: lower case, with dashes. */
export function uuidToId(prefix: string, uuid: string): string {
  // 26 characters hold 130 bits, so two zeros precede the 128 bits.
  let bits = 0;
  let bitCount = 2;
  let at = 0;
  for (let i = 0; i < 36; i++) {
    const code = uuid.charCodeAt(i);
    if (code === DASH) continue;
    bits = (bits << 4) | (HEX_VALUES[code] ?? 0);
    bitCount += 4;
    if (bitCount >= 5) {
      bitCount -= 5;
      bodyBytes[at++] = CODES[(bits >>> bitCount) & 31] ?? 0;
      bits &= 15;
    }
  }
  return prefix + bodyBytes.toString("latin1");
}

function valueAt(id: string, index: number): number {
  return VALUES[id.charCodeAt(index)] ?? 0;
}

let lastTime = -1;
let lastTimeText = "";

function timeText(time: number): string {
  if (time === lastTime) return lastTimeText;
  let rest = time;
  let text = "";
  for (let i = 0; i < TIME_LENGTH; i++) {
    text = (ALPHABET[rest % 32] ?? "") + text;
    rest = Math.floor(rest / 32);
  }
  lastTime = time;
  lastTimeText = text;
  return text;
}

function wordText(word: number): string {
  return String.fromCharCode(
    CODES[word >>> 15] ?? 0,
    CODES[(word >>> 10) & 31] ?? 0,
    CODES[(word >>> 5) & 31] ?? 0,
    CODES[word & 31] ?? 0,
  );
}
