import { expect, test } from "bun:test";
import { parseZone } from "./zone.ts";
import { guessZone } from "./zone-names.ts";

test.each([
  ["Europe/Berlim", "Europe/Berlin"],
  ["Europ/Berlin", "Europe/Berlin"],
  ["Berlin", "Europe/Berlin"],
  ["berlim", "Europe/Berlin"],
  ["America/New York", "America/New_York"],
  ["america/newyork", "America/New_York"],
  ["New York", "America/New_York"],
  ["US/New_York", "America/New_York"],
  ["Asia/Tokio", "Asia/Tokyo"],
  ["Buenos Aires", "America/Argentina/Buenos_Aires"],
  ["UTC ", "UTC"],
  ["CST", null],
  ["PST", null],
  ["CEST", null],
  ["GMT+2", null],
  ["UTC+2", null],
  ["+02:00", null],
  ["Europe", null],
  ["Europe/Atlantis", null],
  ["", null],
  ["/", null],
])("%s is taken for %s", (text, name) => {
  expect(guessZone(text)).toBe(name);
  if (name !== null) expect(parseZone(name).name).toBe(name);
});

test("nothing is guessed of a text that is longer than any name", () => {
  expect(guessZone("Europe/Berlin".padEnd(65, "_"))).toBeNull();
  expect(guessZone("Europe/Berlin".padEnd(64, "_"))).toBe("Europe/Berlin");
});

test("the refusal of a zone names the one that was meant, and nothing of what was given", () => {
  expect(() => parseZone("Europe/Berlim")).toThrow(
    "such as Europe/Berlin or UTC. Did you mean Europe/Berlin?",
  );
  expect(() => parseZone("Mars/Olympus")).toThrow(/such as Europe\/Berlin or UTC\.$/);
});
