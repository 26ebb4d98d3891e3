import { describe, expect, test } from "bun:test";
import { createClient, isSealed, makeSealKey, RawJson } from "../../../shared/client/index.ts";
import type { Attempt } from "../../../shared/client/receive/index.ts";
import { answerOf, attemptRequest, listen, recordBodies } from "./support.ts";

const [key, other] = [makeSealKey(), makeSealKey()];
const TARGET_URL = "https://example.com/hook?from=jobwheel";
const fields = { target_url: TARGET_URL, payload: { card: "4711 0815" } };

/** Sends one job whose payload is sealed. Answers the text of the sent payload. */
async function sealedText(payload: object = fields.payload, url = TARGET_URL): Promise<string> {
  const { client, bodies } = recordBodies({ sealWith: key });
  await client.jobs.create({ target_url: url, payload });
  return JSON.stringify(bodies[0]?.payload);
}

describe("a sealed payload", () => {
  test("is opened by a receiver with its key, every digit as it was written", async () => {
    const seen: Attempt[] = [];
    const { receiver } = listen({ openWith: [other, key], onAttempt: (attempt) => seen.push(attempt) });
    const exact = '{"id": 9007199254740993, "name": "Žofie"}';
    const text = await sealedText(new RawJson(exact));
    expect(text).toMatch(/^\{"\$sealed":"v1\.[\w-]{8}\.[\w-]{16}\.[\w-]+"\}$/);
    expect((await receiver(attemptRequest({ text }))).status).toBe(200);
    expect(seen.map(({ payload, text }) => [payload, text])).toEqual([[JSON.parse(exact), exact]]);
  });

  test("is opened once for each attempt, and refused for an attempt that was here before", async () => {
    const { receiver, refusals } = listen({ openWith: key, onAttempt: () => undefined });
    const text = await sealedText();
    const statuses: number[] = [];
    for (const attempt of [1, 2, 2])
      statuses.push((await receiver(attemptRequest({ text, attempt }))).status);
    expect([statuses, refusals]).toEqual([[200, 200, 409], ["replay"]]);
  });

  test("is refused with a reason under another key, at another path, altered, or not sealed", async () => {
    const { receiver, refusals } = listen({ openWith: key, onAttempt: () => expect.unreachable() });
    const text = await sealedText();
    const last = text.length - '"}'.length - 1;
    const altered = `${text.slice(0, last - 4)}${text[last - 4] === "A" ? "B" : "A"}${text.slice(last - 3)}`;
    const foreign = listen({ openWith: other, onAttempt: () => expect.unreachable() });
    const keyless = listen({ onAttempt: () => expect.unreachable() });
    expect(await answerOf(foreign.receiver(attemptRequest({ text })))).toEqual({
      status: 422,
      text: "unknown_key: The payload was sealed with a key that this receiver does not have.",
    });
    expect((await keyless.receiver(attemptRequest({ text }))).status).toBe(422);
    expect(await answerOf(receiver(attemptRequest({ text, url: "https://example.com/refunds" })))).toEqual({
      status: 422,
      text: "wrong_path_or_altered: The payload was sealed for another path than /refunds, or it was altered.",
    });
    await receiver(attemptRequest({ text: altered }));
    await receiver(attemptRequest({ text: '{"card":"4711"}' }));
    await receiver(attemptRequest({ text: text.replace("v1.", "v2.") }));
    await receiver(attemptRequest({ text: '{"$sealed":"v1.a.b.c"}' }));
    expect([foreign.refusals, keyless.refusals]).toEqual([["unknown_key"], ["unknown_key"]]);
    expect(refusals).toEqual([
      "wrong_path_or_altered",
      "wrong_path_or_altered",
      "not_sealed",
      "unreadable_seal",
      "unreadable_seal",
    ]);
  });

  test.each([
    ["https://example.com/hook?a=1", "https://other.example.com/hook?b=2", {}],
    ["https://example.com", "https://example.com/", {}],
    ["https://example.com/a/../ü b", "https://example.com/%C3%BC%20b", {}],
    ["https://example.com//twice//", "https://example.com//twice//", {}],
    ["https://example.com/api/hook", "http://10.0.0.1/hook", { path: "/api/hook" }],
  ])("is bound to the path of its target alone: %s at %s", async (sealedFor, url, options) => {
    const { receiver } = listen({ openWith: key, onAttempt: () => undefined, ...options });
    const text = await sealedText(fields.payload, sealedFor);
    expect((await receiver(attemptRequest({ text, url }))).status).toBe(200);
    const { pathname, search } = new URL(url);
    const node = listen({ openWith: key, onAttempt: () => undefined, ...options });
    const { method, headers } = attemptRequest({ text });
    const body = new TextEncoder().encode(text);
    expect((await node.receiver.handle({ method, url: pathname + search, headers, body })).status).toBe(200);
  });
});

describe("a client that seals", () => {
  test("seals the payloads of all that makes jobs, also one that is left out", async () => {
    const { client, bodies } = recordBodies({ sealWith: key });
    const timetable = { ...fields, name: "a", cron: "@daily" };
    const { name: _, ...unnamed } = timetable;
    await client.jobs.create(fields);
    await client.jobs.createBatch([fields, { target_url: TARGET_URL }]);
    await client.schedules.create(timetable);
    await client.schedules.put("a", unnamed);
    await client.schedules.update("sch_1", fields);
    const payloads = bodies
      .flatMap((body) => (body.jobs as typeof bodies) ?? [body])
      .map((one) => one.payload);
    expect(payloads).toHaveLength(6);
    expect(payloads.every(isSealed)).toBe(true);
    expect(JSON.stringify(bodies)).not.toContain("4711");
    const { receiver, refusals } = listen({ openWith: key, onAttempt: () => undefined });
    for (const [index, payload] of payloads.entries())
      await receiver(attemptRequest({ jobId: `job_${index}`, text: JSON.stringify(payload) }));
    expect(refusals).toEqual([]);
  });

  test("changes a schedule only so that its payload opens at its path", async () => {
    const { client, bodies } = recordBodies({ sealWith: key });
    await client.schedules.pause("sch_1");
    for (const changes of [{ payload: {} }, { target_url: TARGET_URL }]) {
      await expect(client.schedules.update("sch_1", changes)).rejects.toThrow(TypeError);
    }
    expect(bodies).toEqual([{ paused: true }]);
  });

  test("makes each seal anew, but for requests that are to be the same again", async () => {
    const { client, bodies } = recordBodies({ sealWith: key });
    const seals = () => new Set(bodies.splice(0).map((body) => JSON.stringify(body))).size;
    const twice = async (act: () => Promise<unknown>) => {
      await act();
      await act();
      return seals();
    };
    const schedule = { ...fields, cron: "@daily" };
    expect(await twice(() => client.jobs.create(fields))).toBe(2);
    expect(await twice(() => client.jobs.create(fields, { idempotencyKey: "a" }))).toBe(1);
    expect(await twice(() => client.jobs.createBatch([fields], { idempotencyKey: "a" }))).toBe(1);
    expect(await twice(() => client.schedules.put("a", schedule))).toBe(1);
    await client.jobs.createBatch([fields, fields], { idempotencyKey: "a" });
    const [one, two] = (bodies[0]?.jobs ?? []) as { payload: object }[];
    expect(JSON.stringify(one?.payload)).not.toBe(JSON.stringify(two?.payload));
  });

  test("gives two texts two nonces, also under one idempotency key", async () => {
    const { client, bodies } = recordBodies({ sealWith: key });
    const nonceOf = (body: (typeof bodies)[number]) =>
      (body.payload as { $sealed: string }).$sealed.split(".")[2];
    for (const n of [1, 2]) await client.jobs.create({ ...fields, payload: { n } }, { idempotencyKey: "a" });
    expect(new Set(bodies.map(nonceOf)).size).toBe(2);
  });

  test("refuses what is no object, as the service does", async () => {
    const { client, bodies } = recordBodies({ sealWith: key });
    await expect(client.jobs.create({ ...fields, payload: [1] })).rejects.toThrow(SyntaxError);
    expect(bodies).toEqual([]);
  });

  test.each([undefined, "", "whsec_x", new Uint8Array(16)])("is not made with the key %p", (sealWith) => {
    const options = { baseUrl: "https://jobs.example.com", apiKey: "svc_dev_x", sealWith };
    expect(() => createClient(options)).toThrow(TypeError);
    expect(() => createClient(options)).toThrow("makeSealKey");
  });
});
