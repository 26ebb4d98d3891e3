import { writeIdBytes } from "../../domain/ids.ts";

/**
 * Array parameters in the binary form of Postgres (array_recv): neither side writes or parses text, and texts need no
 * quotes. A column is null if all of its values are null: `unnest` pads a column that is shorter than the others with nulls.
 */
export type Column = Buffer | null;

/** The OIDs of the types in pg_type. */
const INT2 = 21;
const INT4 = 23;
const TEXT = 25;
const TIMESTAMPTZ = 1_184;
const UUID = 2_950;

const HEADER_BYTES = 20;
const LENGTH_BYTES = 4;
/** The length that stands for a null. */
const NULL_LENGTH = -1;
/** 2000-01-01, from which Postgres counts the microseconds of an instant. */
const POSTGRES_EPOCH_MS = 946_684_800_000;
const WORD = 2 ** 32;

export function int2Column(values: readonly (number | null)[]): Column {
  return fixedColumn(INT2, 2, values, (bytes, at, value) => bytes.writeInt16BE(value, at));
}

export function int4Column(values: readonly (number | null)[]): Column {
  return fixedColumn(INT4, 4, values, (bytes, at, value) => bytes.writeInt32BE(value, at));
}

/** A column of type uuid: the bits of ids of any kind. */
export function idColumn(ids: readonly (string | null)[]): Column {
  return fixedColumn(UUID, 16, ids, (bytes, at, id) => writeIdBytes(id, bytes, at));
}

/** A column of type timestamptz. Instants are whole milliseconds since 1970; a fraction is dropped. Exact until the year
 * 2285 (2^53 microseconds). */
export function instantColumn(instants: readonly (number | null)[]): Column {
  return fixedColumn(TIMESTAMPTZ, 8, instants, (bytes, at, instant) => {
    const microseconds = (Math.floor(instant) - POSTGRES_EPOCH_MS) * 1_000;
    bytes.writeInt32BE(Math.floor(microseconds / WORD), at);
    bytes.writeInt32BE(microseconds | 0, at + 4);
  });
}

export function textColumn(values: readonly (string | null)[]): Column {
  let size = HEADER_BYTES;
  let hasValue = false;
  for (const value of values) {
    hasValue ||= value !== null;
    size += LENGTH_BYTES + (value === null ? 0 : Buffer.byteLength(value));
  }
  if (!hasValue) return null;
  const bytes = Buffer.allocUnsafe(size);
  let at = writeHeader(bytes, TEXT, values.length);
  for (const value of values) {
    const length = value === null ? 0 : bytes.write(value, at + LENGTH_BYTES);
    at = bytes.writeInt32BE(value === null ? NULL_LENGTH : length, at) + length;
  }
  return bytes;
}

function fixedColumn<Value>(
  type: number,
  valueBytes: number,
  values: readonly (Value | null)[],
  write: (bytes: Buffer, at: number, value: Value) => void,
): Column {
  let valueCount = 0;
  for (const value of values) if (value !== null) valueCount++;
  if (valueCount === 0) return null;
  const bytes = Buffer.allocUnsafe(HEADER_BYTES + LENGTH_BYTES * values.length + valueBytes * valueCount);
  let at = writeHeader(bytes, type, values.length);
  for (const value of values) {
    at = bytes.writeInt32BE(value === null ? NULL_LENGTH : valueBytes, at);
    if (value === null) continue;
    write(bytes, at, value);
    at += valueBytes;
  }
  return bytes;
}

/** The array has one dimension that counts from 1. Postgres does not read the flag for nulls. */
function writeHeader(bytes: Buffer, type: number, length: number): number {
  const [dimensionCount, hasNulls, firstIndex] = [1, 0, 1];
  let at = 0;
  for (const field of [dimensionCount, hasNulls, type, length, firstIndex])
    at = bytes.writeInt32BE(field, at);
  return at;
}
