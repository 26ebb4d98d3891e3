import { beforeEach, describe, expect, test } from "bun:test";
import { createRateDemand, type RateDemand } from "./demand.ts";

let now: number;
let demand: RateDemand;
beforeEach(() => {
  now = 0;
  demand = createRateDemand(() => now);
});

const note = (name: string, count: number) => {
  for (let n = 0; n < count; n++) demand.note(name);
};

describe("the demand of an environment", () => {
  test("is zero while it sends a few requests in a row, whatever other environments send", () => {
    note("one", 10);
    expect(demand.of("one")).toBe(0);
    note("two", 20);
    expect(demand.of("one")).toBe(0);
    expect(demand.of("two")).toBe(20);
  });

  test("is that of the span before, or of this span if that is more already", () => {
    note("one", 10);
    now = 100;
    expect(demand.of("one")).toBe(10);
    note("one", 12);
    expect(demand.of("one")).toBe(12);
  });

  test("is forgotten after a pause", () => {
    note("one", 50);
    now = 200;
    expect(demand.of("one")).toBe(0);
  });

  test("tells the part of all requests that needed a question, which is all of them at first", () => {
    note("one", 8);
    expect(demand.askedPart()).toBe(1);
    demand.noteAsked();
    demand.noteAsked();
    now = 100;
    note("one", 1);
    expect(demand.askedPart()).toBe(0.25);
  });
});
