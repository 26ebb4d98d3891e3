import { describe, expect, test } from "bun:test";
import {
  checkEnabled,
  DELIVERY_ATTEMPTS_MAX,
  decideDeliveryRetry,
  decideEndpointChange,
  decideNewEndpoint,
  deliveriesSince,
  type EndpointFields,
  EVENT_TYPES,
  type EventType,
  type RetriableDelivery,
} from "./webhook.ts";

const targets = { allowInsecure: false, own: [{ hostname: "jobs.example.com", port: 443 }] };
const url = "https://example.com/events";
const endpoint: EndpointFields = { url, events: ["job.failed"], status: "disabled", description: "Billing" };
const make = (wish: object) =>
  decideNewEndpoint({ url, events: ["job.failed"], description: null, ...wish }, targets);

describe("an endpoint", () => {
  test("is enabled, and has its events in the order in which they were given", () => {
    for (const events of [[...EVENT_TYPES], [...EVENT_TYPES].reverse()]) {
      expect(make({ events })).toEqual({ url, events, status: "enabled", description: null });
      expect(decideEndpointChange(endpoint, { events }, targets).events).toEqual(events);
    }
  });

  test("may not be the service itself, by whichever way it gets there", () => {
    const own = "https://jobs.example.com/events";
    expect(() => make({ url: own })).toThrow("url");
    expect(() => decideEndpointChange(endpoint, { url: own }, targets)).toThrow("url");
  });

  test("is told of each event once", () => {
    const events: EventType[] = ["job.failed", "job.succeeded", "job.failed"];
    expect(() => make({ events })).toThrow("events[2] is given twice.");
    expect(() => decideEndpointChange(endpoint, { events }, targets)).toThrow("events[2] is given twice.");
  });

  test.each(["", " ", "\u2003", " Billing "])("has its description as it was given: %j", (description) => {
    expect(make({ description }).description).toBe(description);
    expect(decideEndpointChange(endpoint, { description }, targets).description).toBe(description);
  });

  test("keeps what a change leaves alone, although that would not be accepted today", () => {
    const old = { ...endpoint, url: "https://jobs.example.com/" };
    expect(decideEndpointChange(old, { status: "enabled" }, targets)).toEqual({ ...old, status: "enabled" });
    expect(decideEndpointChange(old, { description: null }, targets)).toEqual({ ...old, description: null });
    expect(decideEndpointChange(old, {}, targets)).toEqual(old);
  });
});

describe("a delivery", () => {
  const now = Date.UTC(2026, 10, 22);
  const over = { isInProgress: false, attemptCount: 1, nextAttemptAt: null, waits: 0, byHand: false };
  const retry = (wish: Partial<RetriableDelivery>, status: EndpointFields["status"] = "enabled") =>
    decideDeliveryRetry({ status: "failed", ...over, ...wish }, status, now);

  test("that is over is opened again for one attempt more, after which none follows by itself", () => {
    for (const status of ["succeeded", "failed", "dropped"] as const) {
      expect(retry({ status })).toEqual({ byHand: true, waits: 0 });
    }
  });

  test("that waits keeps what follows: a wait that is cut short is its own again, one that is over is not", () => {
    const pending = { status: "pending", waits: 3 } as const;
    expect(retry({ ...pending, nextAttemptAt: now + 1 })).toEqual({ byHand: false, waits: 2 });
    expect(retry({ ...pending, nextAttemptAt: now })).toEqual({ byHand: false, waits: 3 });
    expect(retry({ ...pending, nextAttemptAt: now + 1, waits: 0, byHand: true })).toEqual({
      byHand: true,
      waits: 0,
    });
  });

  test("is left alone while an attempt is in progress, dropped or not", () => {
    for (const status of ["pending", "dropped"] as const)
      expect(() => retry({ status, isInProgress: true })).toThrow("in progress");
  });

  test("goes to no endpoint that is disabled", () => {
    expect(() => retry({}, "disabled")).toThrow("disabled");
    expect(() => checkEnabled("disabled")).toThrow("disabled");
    checkEnabled("enabled");
  });

  test("has a bound to its attempts", () => {
    expect(retry({ attemptCount: DELIVERY_ATTEMPTS_MAX - 1 }).byHand).toBe(true);
    expect(() => retry({ attemptCount: DELIVERY_ATTEMPTS_MAX })).toThrow("at most 100 attempts");
  });

  test("is shown for 30 days on every plan", () => {
    expect(new Date(deliveriesSince(now)).toISOString()).toBe("2026-10-23T00:00:00.000Z");
  });
});
