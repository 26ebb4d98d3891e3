import { describe, expect, test } from "bun:test";
import { NoRetry, type ReceivedEvent, RetryLater } from "../../../shared/client/receive/index.ts";
import { answerOf, EVENT, eventRequest, listen } from "./support.ts";

const MINUTE_MS = 60_000;

describe("a receiver of events", () => {
  test("handles an event until it has succeeded, and then answers that it has", async () => {
    const seen: ReceivedEvent[] = [];
    let fails = true;
    const { receiver, clock } = listen({
      onEvent(received) {
        seen.push(received);
        if (fails) throw new RetryLater();
      },
    });
    expect((await receiver(eventRequest())).status).toBe(503);
    fails = false;
    expect((await receiver(eventRequest({ headers: { "service-webhook-test": "true" } }))).status).toBe(200);
    clock.now += 48 * 60 * MINUTE_MS;
    expect((await receiver(eventRequest({ sentAt: clock.now }))).status).toBe(200);
    const common = { kind: "event", event: EVENT, text: JSON.stringify(EVENT), traceparent: null } as const;
    expect(seen).toEqual([
      { ...common, isSample: false },
      { ...common, isSample: true },
    ]);
  });

  test("lets an event wait that is still being handled, and takes it again when its process counts as gone", async () => {
    const held = Promise.withResolvers<void>();
    let count = 0;
    const { receiver, clock } = listen({ onEvent: () => (++count === 1 ? held.promise : undefined) });
    const first = receiver(eventRequest());
    // The second request finds the first one under way.
    while (count === 0) await Bun.sleep(0);
    expect((await receiver(eventRequest())).status).toBe(503);
    clock.now += MINUTE_MS;
    expect((await receiver(eventRequest())).status).toBe(200);
    held.resolve();
    expect([(await first).status, count]).toEqual([200, 2]);
  });

  test("ends the delivery for good by a NoRetry, and refuses another id than the one that is signed", async () => {
    const { receiver, refusals } = listen({
      onEvent() {
        throw new NoRetry("never");
      },
    });
    expect(await answerOf(receiver(eventRequest()))).toEqual({ status: 410, text: "never" });
    expect((await receiver(eventRequest({ runId: "evt_2" }))).status).toBe(400);
    expect(refusals).toEqual(["unreadable"]);
  });
});
