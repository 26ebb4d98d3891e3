import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { OPERATIONS } from "../../../shared/contract/operations/all.ts";
import type { Operation } from "../../../shared/contract/operations/operation.ts";
import { createIdSource } from "../../../shared/domain/ids.ts";
import {
  type Answer,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { expectNoTrace } from "./support.ts";

let gateway: TestGateway;
let victim: TestProject;
let attacker: TestProject;
/** An id of the victim for each kind of resource, by the name of the path's parameter. */
const victims = new Map<string, string>();

/** The route table itself, so that a new route is tried too. */
const operations: [string, Operation][] = Object.entries(OPERATIONS);
/**
 * These operations make the resource that they name in the caller's own environment, even if another project has the name
 * (by-name.test.ts, and the tests of flows and hosts).
 */
const MAKE_WHAT_THEY_NAME = ["putSchedule", "updateFlow", "parkHost", "openHost"];
const withId = operations.filter(([name, { id }]) => id !== null && !MAKE_WHAT_THEY_NAME.includes(name));
const parameterOf = ({ path }: Operation) => /\{(\w+)\}/.exec(path)?.[1] ?? "";
const parameters = [...new Set(withId.map(([, operation]) => parameterOf(operation)))];

const ROUNDS_MIN = 20;
/** A busy machine may need many rounds until one request of each kind runs undisturbed. */
const ROUNDS_MAX = 500;
/** The most that reading an existing row may cost, compared with finding none. */
const TIMING_FACTOR_MAX = 4;

beforeAll(async () => {
  gateway = await startTestGateway();
  victim = await gateway.addProject();
  attacker = await gateway.addProject();
  for (const parameter of parameters) victims.set(parameter, await addResource(parameter));
  const path = `/v2/webhooks/${victims.get("webhook_id")}/test`;
  const sample = await gateway.call("POST", path, { key: victim.production });
  victims.set("delivery_id", (JSON.parse(sample.text) as { id: string }).id);
});
afterAll(() => gateway.stop());

async function addResource(parameter: string): Promise<string> {
  if (parameter === "run_id") {
    const job = await gateway.createJob(victim, { retry_policy: { max_attempts: 1 } });
    return (await gateway.attempt(victim, job, 1, { status: "failed", leaves: "failed" })).runId;
  }
  if (parameter === "name") {
    const name = "the-name-of-the-victim";
    const body = { cron: "@yearly", target_url: TARGET_URL };
    await gateway.call("PUT", `/v2/schedules/by-name/${name}`, { key: victim.production, body });
    return name;
  }
  if (parameter === "key") {
    const key = "the:key.of/the-victim";
    const [path, body] = [`/v2/flows/${encodeURIComponent(key)}`, { pinned: true }];
    await gateway.call("PATCH", path, { key: victim.production, body });
    return key;
  }
  // A POST to the path above a resource creates every other kind; the documented example body works there.
  const above = withId
    .map(([, { path }]) => path.split(`/{${parameter}}`))
    .find(([, rest]) => rest === "")?.[0];
  const creation = operations.find(([, { method, path }]) => method === "POST" && path === above)?.[1];
  const [body] = Object.values(creation?.body?.examples ?? {}) as object[];
  if (above === undefined || body === undefined) throw new Error(`nothing makes a ${parameter}`);
  const answer = await gateway.call("POST", above, { key: victim.production, body });
  if (answer.status !== 201) throw new Error(answer.text);
  return (JSON.parse(answer.text) as { id: string }).id;
}

const ask = (operation: Operation, id: string, key: string): Promise<Answer> => {
  const [body] = Object.values(operation.body?.examples ?? {}) as object[];
  const path = operation.path
    .replace(/\{\w+\}/, encodeURIComponent(id))
    .replace(/\{(\w+)\}/, (_, inner: string) => victims.get(inner) ?? "");
  return gateway.call(operation.method, path, { key, ...(body === undefined ? {} : { body }) });
};

/** The parts of an answer that are the same in every answer. */
function bytesOf({ status, headers, text }: Answer): string {
  const changing = ["date", "request-id", "ratelimit-remaining", "ratelimit-reset"];
  const shown = [...headers].filter(([name]) => !changing.includes(name));
  return JSON.stringify([status, shown, text.replace(headers.get("request-id") ?? "", "")]);
}

const swapPrefix = (id: string, other: string) => other.slice(0, 4) + id.slice(4);

/** Ids that do not belong to the attacker. A different answer to one of them would tell something. */
function foreignIds(id: string): Record<string, string> {
  const unknown = createIdSource((count) => new Uint8Array(count).fill(7)).next(id.slice(0, 4), Date.now());
  const others = parameters.map((parameter) => swapPrefix(id, victims.get(parameter) ?? ""));
  return {
    "of another project": id,
    unknown,
    "of the first moment": `${id.slice(0, 4)}${"0".repeat(26)}`,
    "of the last moment": `${id.slice(0, 4)}7${"z".repeat(25)}`,
    "too great for an id": `${id.slice(0, 4)}8${"z".repeat(25)}`,
    "in upper case": id.toUpperCase(),
    "with a body in upper case": id.slice(0, 4) + id.slice(4).toUpperCase(),
    "one character short": id.slice(0, -1),
    "one character long": `${id}0`,
    "without a prefix": id.slice(4),
    "with a letter that ids do not have": `${id.slice(0, -1)}u`,
    "with a blank": `${id} `,
    "with a line feed": `${id}\n`,
    "with a NUL": `${id}\0`,
    "with a wildcard": `${id.slice(0, -1)}%`,
    "with a quote": `${id.slice(0, -1)}'`,
    long: "x".repeat(5_000),
    ...Object.fromEntries(
      others.filter((it) => it !== id).map((it) => [`with the prefix ${it.slice(0, 4)}`, it]),
    ),
  };
}

describe.each(withId)("%s", (_, operation) => {
  test("answers with the same bytes to every id that is not the caller's, and does nothing", async () => {
    const id = victims.get(parameterOf(operation)) ?? "";
    await expectNoTrace(gateway, attacker, async () => {
      const first = await ask(operation, "nothing", attacker.production);
      readRefusal(first, "resource_not_found");
      for (const [kind, foreign] of Object.entries(foreignIds(id))) {
        expect([kind, bytesOf(await ask(operation, foreign, attacker.production))]).toEqual([
          kind,
          bytesOf(first),
        ]);
      }
      const inOtherEnvironment = await ask(operation, id, victim.development);
      expect(bytesOf(inOtherEnvironment)).toBe(bytesOf(first));
    });
  });

  test("takes no longer for an id that belongs to somebody else", async () => {
    const id = victims.get(parameterOf(operation)) ?? "";
    const unknown = foreignIds(id).unknown ?? "";
    const timesOf = { foreign: [] as number[], unknown: [] as number[] };
    const best = (times: number[]) => Math.min(...times);
    const isAlike = () =>
      best(timesOf.foreign) < TIMING_FACTOR_MAX * best(timesOf.unknown) &&
      best(timesOf.unknown) < TIMING_FACTOR_MAX * best(timesOf.foreign);
    for (let round = 0; round < ROUNDS_MIN || (round < ROUNDS_MAX && !isAlike()); round++) {
      for (const [kind, asked] of [
        ["foreign", id],
        ["unknown", unknown],
      ] as const) {
        const startedAt = performance.now();
        await ask(operation, asked, attacker.production);
        timesOf[kind].push(performance.now() - startedAt);
      }
    }
    expect(best(timesOf.foreign)).toBeLessThan(TIMING_FACTOR_MAX * best(timesOf.unknown));
    expect(best(timesOf.unknown)).toBeLessThan(TIMING_FACTOR_MAX * best(timesOf.foreign));
  });
});

describe("a list", () => {
  const lists = operations.filter(
    ([, { method, id, query }]) => method === "GET" && id === null && "cursor" in query.properties,
  );

  test.each(lists)("of another project shows nothing of the victim: %s", async (_, operation) => {
    for (const key of [attacker.production, attacker.development, victim.development]) {
      const { text } = await gateway.call("GET", operation.path, { key });
      const { data, next_cursor } = JSON.parse(text) as { data: { name: null }[]; next_cursor: null };
      // A list of keys has at least the attacker's own key.
      const own = operation.path === "/v2/keys" ? [{ name: null }] : [];
      expect({ data, next_cursor }).toMatchObject({ data: own, next_cursor: null });
      for (const id of victims.values()) expect(text).not.toContain(id);
    }
  });

  test.each(lists)("filtered by an id does not tell to whom the id belongs: %s", async (_, operation) => {
    for (const name of Object.keys(operation.query.properties).filter((it) => victims.has(it))) {
      const id = victims.get(name) ?? "";
      const answers = await Promise.all(
        [...Object.values(foreignIds(id)), "nothing"].map((foreign) =>
          gateway.call("GET", `${operation.path}?${name}=${encodeURIComponent(foreign)}`, {
            key: attacker.production,
          }),
        ),
      );
      expect(new Set(answers.map(bytesOf)).size).toBe(1);
      expect(answers[0]?.text).toBe('{"data":[],"next_cursor":null}');
    }
  });
});

test("an Idempotency-Key that another project used is free, and tells nothing of what was made under it", async () => {
  const creations = operations.filter(
    ([, { method, id, body }]) => method === "POST" && id === null && body !== null,
  );
  for (const [name, operation] of creations) {
    const [body] = Object.values(operation.body?.examples ?? {}) as object[];
    const send = async (key: string) => {
      const headers = { "Idempotency-Key": "the same" };
      return gateway.call("POST", operation.path, { key, headers, ...(body === undefined ? {} : { body }) });
    };
    const answers = [
      await send(victim.production),
      await send(attacker.production),
      await send(victim.development),
    ];
    expect([name, ...answers.map(({ headers }) => headers.get("idempotent-replayed"))]).toEqual([
      name,
      null,
      null,
      null,
    ]);
  }
});
