import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { FLOW_CLASSES } from "../domain/flow-class.ts";
import { REGIONS } from "../domain/scope.ts";
import { WAIT_REASONS } from "../domain/wait.ts";
import {
  decodeAnswers,
  decodeBeat,
  decodeCommand,
  decodeDue,
  decodeHint,
  encodeAnswers,
  encodeBeat,
  encodeCommand,
  encodeDue,
  encodeHint,
} from "./encoding.ts";
import type { Answer, Command } from "./messages.ts";

const count = fc.nat();
const instant = fc.double({ min: 0, max: 4e12, noNaN: true }).map((ms) => ms + 0);
const region = fc.constantFrom(...REGIONS);
const attemptOf = {
  flowClass: fc.constantFrom(...FLOW_CLASSES),
  id: fc.string({ minLength: 1, maxLength: 64 }),
  attempt: count,
  dueAt: instant,
};
const begunOf = { flowClass: attemptOf.flowClass, id: attemptOf.id, attempt: count };
const gated = { isGated: fc.constant(true as const) };
const hashed = { ...gated, keyHash: count };
const owed = fc.record(
  { projectNo: count, ...attemptOf, ...gated },
  { requiredKeys: ["projectNo", "flowClass", "id", "attempt", "dueAt"] },
);
const answer: fc.Arbitrary<Answer> = fc.oneof(
  fc.constantFrom("granted", "gone", "node_full").map((kind) => ({ kind })),
  count.map((returned) => ({ kind: "no_permit" as const, returned })),
  fc.record(
    { kind: fc.constant("early" as const), waitMs: instant, putOffFor: fc.constantFrom(...WAIT_REASONS) },
    { requiredKeys: ["kind", "waitMs"] },
  ),
  instant.map((untilAt) => ({ kind: "blocked" as const, untilAt })),
  instant.map((waitMs) => ({ kind: "queued" as const, waitMs })),
);
const command: fc.Arbitrary<Command> = fc
  .record({
    ...{ region, shard: count, projectNo: count },
    owed: fc.array(
      fc.record({ ...attemptOf, ...gated }, { requiredKeys: ["flowClass", "id", "attempt", "dueAt"] }),
    ),
  })
  .map((made) => ({
    ...made,
    owed: made.owed.map((item) => ({ projectNo: made.projectNo, ...item })),
  }));

/** The number of fields of a message that has all its lists, for each kind. */
const LISTS_END: Record<string, number> = { command: 5, due: 6, answers: 5, hint: 6 };

describeKind("command", command, encodeCommand, decodeCommand);
describeKind(
  "due",
  fc.record({
    workerNodeId: count,
    region,
    items: fc.array(
      fc.record(
        {
          projectNo: count,
          ...attemptOf,
          ...hashed,
          shard: count,
          waitedFor: fc.constantFrom(...WAIT_REASONS),
        },
        { requiredKeys: ["projectNo", "flowClass", "id", "attempt", "dueAt", "shard"] },
      ),
    ),
  }),
  encodeDue,
  decodeDue,
);
describeKind(
  "answers",
  fc.record({
    deliveryNodeId: count,
    room: count,
    region,
    items: fc.array(fc.record({ projectNo: count, shard: count, id: attemptOf.id, attempt: count, answer })),
  }),
  encodeAnswers,
  decodeAnswers,
);
describeKind(
  "hint",
  fc.record(
    {
      region,
      shard: count,
      owed: fc.array(owed),
      freed: fc.array(fc.record({ projectNo: count, returned: count })),
      begun: fc.array(fc.record({ projectNo: count, ...begunOf }), { minLength: 1 }),
    },
    { requiredKeys: ["region", "shard", "owed", "freed"] },
  ),
  encodeHint,
  decodeHint,
);
describeKind(
  "beat",
  fc.record({ nodeId: count, regions: fc.array(region), room: count }),
  encodeBeat,
  decodeBeat,
);

test("a list item with one bad place spoils its whole message", () => {
  const good = '["us-east",3,7,[1,"job_a",1,5.5]]';
  expect(decodeCommand(good)?.owed).toHaveLength(1);
  for (const bad of ["4", "-1", '"job_a"', "null"]) {
    expect(decodeCommand(good.replace("[1,", `[${bad},`))).toBeUndefined();
  }
  expect(decodeCommand(good.replace(",5.5", ""))).toBeUndefined();
  expect(decodeCommand(good.replace("us-east", "us-north"))).toBeUndefined();
});

function describeKind<M>(
  name: string,
  messages: fc.Arbitrary<M>,
  encode: (message: M) => string,
  decode: (text: string) => M | undefined,
): void {
  describe(`${name}:`, () => {
    test("what was encoded is decoded", () => {
      fc.assert(fc.property(messages, (message) => expect(decode(encode(message))).toEqual(message)));
    });

    test("it is refused when any one place holds something else or is missing, and read without what is added behind", () => {
      const wrong = fc.constantFrom<unknown[]>(null, true, "", "x".repeat(65), -1, 0.5, {}, [[]], ["x"]);
      fc.assert(
        fc.property(messages, wrong, fc.nat(), (message, value, seed) => {
          const fields: unknown[] = JSON.parse(encode(message));
          expect(decode(JSON.stringify(fields.slice(1)))).toBeUndefined();
          // The optional lists of a message stand before the fields that a later version adds.
          const missing = Array.from({ length: (LISTS_END[name] ?? 0) - fields.length }, () => []);
          const later = [...fields, ...missing, 0];
          expect(decode(JSON.stringify(later))).toEqual(message);
          const altered = fields.with(seed % fields.length, value);
          expect(decode(JSON.stringify(altered))).toBeUndefined();
        }),
      );
    });

    test("arbitrary text is refused without an exception", () => {
      fc.assert(
        fc.property(fc.oneof(fc.string(), fc.json()), (text) => expect(decode(text)).toBeUndefined()),
      );
      expect(decode("[".repeat(500_000))).toBeUndefined();
      expect(decode(`[${"[".repeat(500_000)}${"]".repeat(500_000)}]`)).toBeUndefined();
    });
  });
}
