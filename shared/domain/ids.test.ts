import { expect, test } from "bun:test";
import fc from "fast-check";
import { createIdSource, idsBetween, idTimeMs, idToUuid, JOB_PREFIX, parseId, uuidToId } from "./ids.ts";

const TIME_MAX = 2 ** 48 - 1;
const zeros = (count: number) => new Uint8Array(count);
const ones = (count: number) => new Uint8Array(count).fill(255);
const random = (count: number) => crypto.getRandomValues(new Uint8Array(count));

test("the bits of an id are those of its uuid", () => {
  const golden: [string, string][] = [
    ["00000000000000000000000000", "00000000-0000-0000-0000-000000000000"],
    ["7zzzzzzzzzzzzzzzzzzzzzzzzz", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    ["00000000000000000000000001", "00000000-0000-0000-0000-000000000001"],
    ["40000000000000000000000000", "80000000-0000-0000-0000-000000000000"],
    // The example of the ULID specification, 2016-07-30T23:54:10.259Z.
    ["01arz3ndektsv4rrffq69g5fav", "01563e3a-b5d3-d676-4c61-efb99302bd5b"],
  ];
  for (const [body, uuid] of golden) {
    expect(idToUuid(`job_${body}`)).toBe(uuid);
    expect(uuidToId("job_", uuid)).toBe(`job_${body}`);
  }
  expect(idTimeMs("run_01arz3ndektsv4rrffq69g5fav")).toBe(Date.parse("2016-07-30T23:54:10.259Z"));
});

test("every uuid comes back from its id, and the order of ids is that of their uuids", () => {
  const uuids = fc.uint8Array({ minLength: 16, maxLength: 16 }).map((bytes) => {
    const hex = bytes.toHex();
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
  });
  fc.assert(
    fc.property(uuids, uuids, (a, b) => {
      const [idA, idB] = [uuidToId("key_", a), uuidToId("key_", b)];
      expect(idToUuid(idA)).toBe(a);
      expect(parseId("key_", idA)).toBe(idA);
      expect(idA < idB).toBe(a < b);
    }),
  );
});

test("ids of one source rise strictly while the clock goes back by no more than 10 s", () => {
  const clock = fc.array(fc.oneof(fc.integer({ min: 0, max: 5 }), fc.integer({ min: 0, max: 9_900 })));
  for (const bytes of [zeros, ones, random]) {
    fc.assert(
      fc.property(clock, (times) => {
        const source = createIdSource(bytes);
        let last = "";
        for (const now of times) {
          const id = source.next(JOB_PREFIX, now);
          expect(id > last).toBe(true);
          expect(parseId(JOB_PREFIX, id)).toBe(id);
          last = id;
        }
      }),
    );
  }
});

test("the times of ids follow a clock that was set back further, and the ids are others", () => {
  const source = createIdSource(random);
  const hour = 3_600_000;
  const ids = [0, hour, 10, 11, 11].map((now) => source.next(JOB_PREFIX, now));
  expect(ids.map(idTimeMs)).toEqual([0, hour, 10, 11, 11]);
  expect(source.next(JOB_PREFIX, 0) > (ids.at(-1) as string)).toBe(true);
  expect(new Set(ids).size).toBe(5);
});

test("the random bits overflow into the time, not back to zero", () => {
  const source = createIdSource(ones);
  expect(source.next("", 7)).toBe("0000000007zzzzzzzzzzzzzzzz");
  const next = source.next("", 7);
  expect(idTimeMs(next)).toBe(8);
});

test("the time of an id is the whole millisecond it was made in", () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: TIME_MAX }), (now) => {
      expect(idTimeMs(createIdSource(random).next("job_", now))).toBe(now);
    }),
  );
  expect(idTimeMs(createIdSource(random).next("job_", 1234.9))).toBe(1234);
});

test("two sources make different ids in one millisecond", () => {
  const ids = Array.from({ length: 1_000 }, () => createIdSource(random).next("job_", 1));
  expect(new Set(ids).size).toBe(1_000);
});

test("an id has one spelling", () => {
  const good = "job_01arz3ndektsv4rrffq69g5fav";
  expect(parseId("job_", good)).toBe(good);
  const bad = [
    good.toUpperCase(),
    `${good}0`,
    good.slice(0, -1),
    good.replace("job_", "run_"),
    good.replace("job_", "job"),
    `job_8${good.slice(5)}`,
    ` ${good.slice(1)}`,
    ...["i", "l", "o", "u", "A", "-", "\n", "é"].map((wrong) => good.slice(0, -1) + wrong),
    "",
  ];
  for (const text of bad) expect(parseId("job_", text)).toBeNull();
});

test("the ids between two instants are those whose times lie between them, the instants left out", () => {
  const at = Date.parse("2026-11-21T10:00:00.007Z");
  const idAt = (time: number, byte: number) =>
    createIdSource((count) => new Uint8Array(count).fill(byte)).next("job_", time);
  const { fromId, beforeId } = idsBetween("job_", { after: at, before: at + 2 });
  const isBetween = (id: string) => id >= (fromId ?? "") && id < (beforeId ?? "");
  for (const byte of [0, 255]) {
    expect([at, at + 1, at + 2].map((time) => isBetween(idAt(time, byte)))).toEqual([false, true, false]);
  }
  expect(idsBetween("job_", { after: null, before: null })).toEqual({ fromId: null, beforeId: null });
  expect(idsBetween("job_", { after: -62_167_219_200_000, before: -1 })).toEqual({
    fromId: "job_00000000000000000000000000",
    beforeId: "job_00000000000000000000000000",
  });
});
