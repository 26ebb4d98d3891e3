import { expect, test } from "bun:test";
import fc from "fast-check";
import { editDistance, findNearest, GUESSED_CHARACTERS_MAX } from "./nearest.ts";

test("the same letters joined in another way, or a mistake or two, are understood", () => {
  const known = ["run_at", "target_url", "retry_policy", "payload", "tags"];
  for (const [text, meant] of [
    ["runAt", "run_at"],
    ["RUN-AT", "run_at"],
    ["targetUrl", "target_url"],
    ["taget_url", "target_url"],
    ["tagret_url", "target_url"],
    ["target_urll", "target_url"],
    ["retyr_polcy", "retry_policy"],
    ["tag", null],
    ["tagz", "tags"],
    ["at", null],
    ["url", null],
    ["", null],
    ["target", null],
    ["x".repeat(1_000_000), null],
    ["r_u_n_a_t".padEnd(GUESSED_CHARACTERS_MAX + 1, "_"), null],
  ] as const) {
    expect([text.slice(0, 80), findNearest(text, known)]).toEqual([text.slice(0, 80), meant]);
  }
});

test("of two words that are equally near none is chosen, and the nearer one of two is", () => {
  expect(findNearest("created_by", ["created_at", "created_on"])).toBeNull();
  expect(findNearest("startet", ["started", "starter"])).toBeNull();
  expect(findNearest("startedx", ["starter", "started"])).toBe("started");
  expect(findNearest("startedx", ["started", "starter"])).toBe("started");
});

/** The whole table, as it stands in every textbook. */
function slowDistance(one: string, other: string): number {
  const table = Array.from({ length: one.length + 1 }, (_, row) =>
    Array.from({ length: other.length + 1 }, (_, column) => (row === 0 ? column : column === 0 ? row : 0)),
  );
  const at = (row: number, column: number) => table[row]?.[column] ?? 0;
  for (let row = 1; row <= one.length; row++) {
    for (let column = 1; column <= other.length; column++) {
      const cost = one[row - 1] === other[column - 1] ? 0 : 1;
      const choices = [at(row - 1, column) + 1, at(row, column - 1) + 1, at(row - 1, column - 1) + cost];
      if (row > 1 && column > 1 && one[row - 1] === other[column - 2] && one[row - 2] === other[column - 1])
        choices.push(at(row - 2, column - 2) + 1);
      (table[row] as number[])[column] = Math.min(...choices);
    }
  }
  return at(one.length, other.length);
}

test("the bounded distance is the whole one, as far as it goes", () => {
  const word = fc.string({ unit: fc.constantFrom("a", "b", "c"), maxLength: 9 });
  fc.assert(
    fc.property(word, word, fc.integer({ min: 0, max: 4 }), (one, other, most) => {
      expect(editDistance(one, other, most)).toBe(Math.min(slowDistance(one, other), most + 1));
    }),
    { numRuns: 3_000 },
  );
});
