import { describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createIdSource, idToUuid, JOB_PREFIX, REQUEST_PREFIX, RUN_PREFIX, retypeId } from "./ids.ts";
import { formatTraceparent, parseTraceparent, traceIdOf, unrecordedContext } from "./trace.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN = "00f067aa0ba902b7";
const sampled = { traceId: TRACE, spanId: SPAN, isSampled: true };

describe("a traceparent", () => {
  test.each([
    [`00-${TRACE}-${SPAN}-01`, sampled],
    [`00-${TRACE}-${SPAN}-00`, { ...sampled, isSampled: false }],
    // Only the lowest flag has a meaning.
    [`00-${TRACE}-${SPAN}-ff`, sampled],
    [`00-${TRACE}-${SPAN}-fe`, { ...sampled, isSampled: false }],
    // A later version, which may have more after the known fields.
    [`01-${TRACE}-${SPAN}-01`, sampled],
    [`cc-${TRACE}-${SPAN}-01-what-comes`, sampled],
    [`cc-${TRACE}-${SPAN}-01-`, sampled],
  ])("is read: %s", (header, context) => {
    expect(parseTraceparent(header)).toEqual(context);
  });

  test.each([
    null,
    "",
    "00",
    `00-${TRACE}-${SPAN}`,
    `ff-${TRACE}-${SPAN}-01`,
    `00-${"0".repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${"0".repeat(16)}-01`,
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
    `00-${TRACE}-${SPAN.toUpperCase()}-01`,
    `00-${TRACE.slice(1)}-${SPAN}-01`,
    `00-${TRACE}0-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-1`,
    `00-${TRACE}-${SPAN}-0g`,
    `00-${TRACE}-${SPAN}-01-more`,
    `01-${TRACE}-${SPAN}-01.more`,
    ` 00-${TRACE}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-01\n`,
    // A repeated header, as Headers joins it.
    `00-${TRACE}-${SPAN}-01, 00-${TRACE}-${SPAN}-01`,
    `0-${TRACE}-${SPAN}-01`,
    `zz-${TRACE}-${SPAN}-01`,
    "-".repeat(100),
  ])("is ignored: %p", (header) => {
    expect(parseTraceparent(header)).toBeNull();
  });

  test("is passed on with the one known flag only", () => {
    expect(formatTraceparent(parseTraceparent(`cc-${TRACE}-${SPAN}-ff-more`) ?? sampled)).toBe(
      `00-${TRACE}-${SPAN}-01`,
    );
  });
});

describe("a request or job without a given trace", () => {
  const ids = createIdSource(randomBytes);
  const request = ids.next(REQUEST_PREFIX, 1_795_000_000_000);
  const job = retypeId(request, JOB_PREFIX);

  test("has a trace with the 128 bits of its id, the same for a request and its job", () => {
    expect(traceIdOf(job)).toBe(idToUuid(job).replaceAll("-", ""));
    expect(traceIdOf(request)).toBe(traceIdOf(job));
  });

  test("shares one trace with all its attempts, each at a valid place of its own", () => {
    const runs = Array.from({ length: 100 }, () => ids.next(RUN_PREFIX, 1_795_000_000_001));
    const places = runs.map((run) => unrecordedContext(job, run));
    expect(new Set(places.map(({ spanId }) => spanId)).size).toBe(100);
    for (const place of places) {
      expect(place).toMatchObject({ traceId: traceIdOf(job), isSampled: false });
      expect(parseTraceparent(formatTraceparent(place))).toEqual(place);
    }
  });
});
