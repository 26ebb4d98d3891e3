/** Hostile texts by the kind of field that they attack; `text` holds those that every field has to bear. */
export const HOSTILE_TEXTS = {
  text: [
    ...["", " ", "\0", "a\0b", "\ud800", "\u200b", "\u202e", "a\nb", "é", "İ", "😀".repeat(81), ","],
    ...["x".repeat(300), "x".repeat(5_000), "null", "__proto__", "constructor", '\\"', "<b>", "%s%n"],
    "'; DROP TABLE jobs;--",
  ],
  ids: [
    ...["job_", "job_00000000000000000000000000", "JOB_00000000000000000000000000", "..", "a/b", "batch"],
    ...["job_7zzzzzzzzzzzzzzzzzzzzzzzzz", "job_8zzzzzzzzzzzzzzzzzzzzzzzzz", "whk_\0"],
    "00-00000000000000000000000000000000-0000000000000000-00",
    `ff-${"f".repeat(32)}-${"f".repeat(16)}-ff`,
  ],
  numbers: ["0", "-1", "1.5", "1e2", "0x10", " 5", "2147483648", "9223372036854775808", "NaN", "٣"],
  dates: [
    ...["0000-01", "0001-01", "9999-12", "10000-01", "2026-00", "2026-13", "-0001-01", "2026-11-02"],
    ...["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"],
    ...["2030-02-30T00:00:00Z", "2030-01-01T24:00:00Z", "2030-01-01T23:59:60Z", "2030-01-01T00:00:00+99:99"],
    ...["2030-01-01T00:00:00.9999999999Z", "+275760-09-13T00:00:00Z"],
  ],
  urls: [
    ...[
      "https://",
      "https://[",
      "https://[::ffff:10.0.0.1]/",
      "https://2130706433/",
      "https://xn--/",
      "data:,",
    ],
    ...["https:a.example", "https://a.example:65536/", "https://a..example/", "https://例え.テスト/"],
    ...["https://a\u00adb.example/", "https://a.example\\@b.example", "HTTPS://A.EXAMPLE/%"],
    `https://${"a".repeat(64)}.example/`,
    `https://a.example/#${"x".repeat(2_030)}`,
  ],
  crons: [
    ...["@daily", "* * * * *", "* * * * * *", "0 0 31 2 *", "0 0 29 2 MON#5", "0 0 L * *", "*/0 * * * *"],
    ...["59 59 23 31 12 SUN", "5-1 * * * *", "1,".repeat(200), "99999999999999999999 * * * *"],
  ],
  tags: ["NULL", "{}", '{"a"}', '"a","b"', "a+b", "@", "../..", "x".repeat(64), "x".repeat(65), "a\n"],
  zones: ["utc", "Etc/GMT+12", "posix/UTC", "Factory", "localtime", "+25:00", "../UTC"],
};

/** Escapes for a place in a URL that decode to no text or to another text. */
export const HOSTILE_ESCAPES = ["%", "%0", "%00", "%ff", "%c0%af", "%ed%a0%80", "%252e%252e", "+", "=", ";"];

/**
 * Values that are JSON or nearly JSON. They are texts, since a JavaScript value can hold neither a repeated member nor
 * a number beyond all doubles.
 */
export const HOSTILE_JSON = {
  kinds: ["null", "true", "0", '"0"', "[]", "{}", "[null]"],
  numbers: [
    ...["-0", "-1", "1.5", "1.0", "1e2", "1e400", "-1e400", "1e-400", "2147483648", "9007199254740993"],
    ...["9".repeat(400), "01", "NaN"],
  ],
  containers: [
    ...['{"":1}', '{"a":1,"a":1}', '{"\\u0000":1}', '{"\\ud800":1}', '{"a.b/c~d":1}', '{"0":1}', "[[]]"],
    ...['{"__proto__":{"a":1}}', '{"toString":1}', '{"length":-1}', '{"max_attempts":1e400}'],
    ...['["job.failed","job.failed"]', "[".repeat(61) + "]".repeat(61), "[".repeat(1_000)],
    `${'{"a":'.repeat(61)}1${"}".repeat(61)}`,
  ],
};
