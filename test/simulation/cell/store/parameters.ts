/** Reads the parameters of statements, in the forms in which the store writes them (shared/store/database). */

/** Whole microseconds since 1970, as Postgres keeps instants; -Infinity for `-infinity`. */
export type Instant = number;

const MS = 1_000;
export const SECOND: Instant = 1_000_000;

export const fromMs = (ms: number): Instant => Math.round(ms * MS);
export const toMs = (at: Instant): number => at / MS;
export const toMsOrNull = (at: Instant | null): number | null => (at === null ? null : toMs(at));

type Cell = string | number | null;

const HEADER_BYTES = 20;
const POSTGRES_EPOCH_MS = 946_684_800_000;
const UUID_GROUPS = [
  [0, 8],
  [8, 12],
  [12, 16],
  [16, 20],
  [20, 32],
];

/** The cells of an array parameter. A null stands for an array of nulls, which is as long as the other columns. */
function cells(value: unknown): readonly Cell[] | null {
  if (value === null) return null;
  if (Buffer.isBuffer(value)) return binaryCells(value);
  if (Array.isArray(value)) return value;
  const text = String(value);
  if (text === "{}") return [];
  return text
    .slice(1, -1)
    .split(",")
    .map((cell) => (cell === "NULL" ? null : cell.replaceAll('"', "")));
}

function binaryCells(bytes: Buffer): Cell[] {
  const found: Cell[] = [];
  const type = bytes.readInt32BE(8);
  for (let at = HEADER_BYTES; at < bytes.length; ) {
    const length = bytes.readInt32BE(at);
    at += 4;
    found.push(length < 0 ? null : binaryCell(type, bytes.subarray(at, at + length)));
    at += Math.max(length, 0);
  }
  return found;
}

function binaryCell(type: number, bytes: Buffer): Cell {
  switch (type) {
    case 21:
      return bytes.readInt16BE();
    case 23:
      return bytes.readInt32BE();
    case 25:
      return bytes.toString();
    case 1_184:
      return new Date(Number(bytes.readBigInt64BE()) / MS + POSTGRES_EPOCH_MS).toISOString();
    case 2_950:
      return uuidOf(bytes.toString("hex"));
    default:
      throw new Error(`no parameter has the type ${type}`);
  }
}

export function uuidOf(hex: string): string {
  return UUID_GROUPS.map(([begin, end]) => hex.slice(begin, end)).join("-");
}

function columnOf<Value>(value: unknown, read: (cell: string | number) => Value, length: number) {
  const found = cells(value) ?? Array<null>(length).fill(null);
  return found.map((cell) => (cell === null ? null : read(cell)));
}

function full<Value>(values: (Value | null)[]): Value[] {
  return values.map((value) => {
    if (value === null) throw new Error("a parameter has a null where none may be");
    return value;
  });
}

/** `length` is that of the other columns, for a column of nulls that was left out. */
export const numbersOrNull = (value: unknown, length = 0) => columnOf(value, Number, length);
export const numbers = (value: unknown): number[] => full(numbersOrNull(value));
export const textsOrNull = (value: unknown, length = 0) => columnOf(value, String, length);
export const texts = (value: unknown): string[] => full(textsOrNull(value));
export const instantsOrNull = (value: unknown, length = 0) => columnOf(value, readInstant, length);
export const instants = (value: unknown): Instant[] => full(instantsOrNull(value));
export const booleans = (value: unknown): boolean[] => texts(value).map((text) => text === "true");

export function readInstant(value: unknown): Instant {
  if (value === "-infinity") return Number.NEGATIVE_INFINITY;
  const ms = Date.parse(String(value));
  if (Number.isNaN(ms)) throw new Error(`${value} is no instant`);
  return ms * MS;
}

export const instantOrNull = (value: unknown): Instant | null => (value === null ? null : readInstant(value));

/** The first day of the month, and the day, of an instant in UTC. */
export const dayOf = (at: Instant): string => new Date(toMs(at)).toISOString().slice(0, 10);
export const monthOf = (at: Instant): string => `${dayOf(at).slice(0, 7)}-01`;
export function monthAfter(month: string): Instant {
  const date = new Date(`${month}T00:00:00Z`);
  return date.setUTCMonth(date.getUTCMonth() + 1) * MS;
}
