import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { OPERATIONS } from "../../../shared/contract/operations/all.ts";
import { type Answer, startTestGateway, type TestGateway } from "../../support/gateway.ts";
import {
  findAnswerFaults,
  type Json,
  type Published,
  type PublishedOperation,
  readPublished,
} from "../openapi/published.ts";
import { type GivenRequest, prepareRequests, type Requests, withNewName } from "../openapi/requests.ts";
import { HOSTILE_ESCAPES, HOSTILE_JSON, HOSTILE_TEXTS } from "./hostile-values.ts";

/**
 * Sends hostile values in every parameter, id, header and body field that the published document names. Other tests say
 * which values are refused. Here the answer to every value must be as the document describes the operation.
 */

/** A busy machine takes minutes to answer all values of an operation. */
setDefaultTimeout(300_000);

let gateway: TestGateway;
let published: Published;
let requests: Requests;

beforeAll(async () => {
  gateway = await startTestGateway();
  published = await readPublished(gateway);
  requests = await prepareRequests(gateway, (act) => act());
});
afterAll(() => gateway.stop());

const REQUESTS_AT_ONCE = 8;
const ANSWER_MS_MAX = 10_000;
/** A field that has accepted this many texts accepts any text. */
const ACCEPTED_MAX = 32;
const FAULTS_SHOWN_MAX = 10;
const VALUE_SHOWN_MAX = 80;

type Room = "path" | "query" | "header" | "body";

/** The hostile texts that pass the first check of this field. */
function textsFor(room: Room, { type, format, enum: words, const: word }: Json): string[] {
  const { text, numbers, dates, urls, ids } = HOSTILE_TEXTS;
  if (words !== undefined || word !== undefined) return text;
  if (type === "integer") return [...text, ...numbers];
  if (format === "date-time") return [...text, ...dates];
  if (format === "uri") return [...text, ...urls];
  return room === "path" || room === "header" ? [...text, ...ids] : Object.values(HOSTILE_TEXTS).flat();
}

function valuesFor(room: Room, schema: Json): string[] {
  const texts = textsFor(room, schema);
  switch (room) {
    case "path":
    case "query":
      return [...texts.map((text) => encodeURIComponent(text.toWellFormed())), ...HOSTILE_ESCAPES];
    case "header":
      // A client cannot send other characters in a header.
      return texts.filter((text) => /^[\t\x20-\x7e\x80-\xff]*$/.test(text));
    case "body": {
      const { kinds, numbers, containers } = HOSTILE_JSON;
      if (schema.type === "object" || schema.type === "array") return [...kinds, ...containers];
      if (schema.type === "integer") return [...kinds, ...numbers];
      return [...kinds, ...texts.map((text) => JSON.stringify(text))];
    }
  }
}

/** A request with one hostile value, and the place of that value. */
interface Attempt {
  place: string;
  value: string;
  /** The request to an operation on the resource at `path`. */
  requestTo(path: string): GivenRequest;
}

function* attack({ path: pattern, parameters, bodySchema, bodies }: PublishedOperation): Generator<Attempt> {
  for (const { name, in: room, schema } of parameters) {
    const place = `${room} ${name}`;
    const step = pattern.split("/").indexOf(`{${name}}`);
    for (const value of valuesFor(room, schema)) {
      const requestTo = (path: string): GivenRequest => {
        if (room === "path") return { path: path.split("/").with(step, value).join("/") };
        return room === "query" ? { path, query: `?${name}=${value}` } : { path, headers: { [name]: value } };
      };
      yield { place, value, requestTo };
    }
  }
  for (const [steps, schema] of bodySchema === null ? [] : placesIn(bodySchema)) {
    // A field of one example may be refused in the other examples for its place alone, whatever its value is.
    const example = bodies.find((body) => has(body, steps)) ?? bodies[0];
    for (const value of valuesFor("body", schema)) {
      const body = put(withNewName(example), steps, value);
      yield { place: ["body", ...steps].join("."), value, requestTo: (path) => ({ path, body }) };
    }
  }
}

type Step = string | number;

/** The places in a body of this schema: the body itself, its fields and entries, and the places within these. */
function placesIn(schema: Json): [Step[], Json][] {
  if ("$ref" in schema) return placesIn(published.look(schema.$ref));
  const inner: [Step, Json][] = Object.entries(schema.properties ?? {});
  if ("items" in schema) inner.push([0, schema.items]);
  return [
    [[], schema],
    ...inner.flatMap(([step, below]) =>
      placesIn(below).map(([steps, found]): [Step[], Json] => [[step, ...steps], found]),
    ),
  ];
}

const has = (body: Json, steps: Step[]): boolean =>
  steps.reduce((inner: Json, step) => inner?.[step], body) !== undefined;

/** The body as JSON, with `value` in one place of it. */
function put(body: Json, [step, ...rest]: Step[], value: string): string {
  if (step === undefined) return value;
  const inner = put(body?.[step], rest, value);
  if (typeof step === "number") return `[${inner}]`;
  const { [step]: _, ...others } = body ?? {};
  const members = Object.entries(others).map(([name, other]) => `"${name}":${JSON.stringify(other)}`);
  return `{${[...members, `"${step}":${inner}`].join(",")}}`;
}

interface Asked {
  /** Null if no answer came in time. */
  answer: Answer | null;
  /** The faults of the answer. */
  faults: string[];
}

/** Also reads the resource that the request has made, and removes it. */
async function askAndLook(operation: PublishedOperation, request: GivenRequest): Promise<Asked> {
  const { answer, faults } = await ask(operation, request);
  if (answer?.status !== 201) return { answer, faults };
  const path = `${operation.path}/${JSON.parse(answer.text).id}`;
  for (const next of published.operations) {
    const isOnIt = next.path.startsWith(`${operation.path}/{`) && next.path.endsWith("}");
    if (!isOnIt || next.method === "PATCH") continue;
    const { answer: shown, faults: found } = await ask(next, { path });
    if (found.length === 0 && shown?.status !== 200) found.push(`${shown?.status} ${shown?.text}`);
    faults.push(...found.map((fault) => `${next.id} of what was made: ${fault}`));
  }
  return { answer, faults };
}

async function ask(operation: PublishedOperation, request: GivenRequest): Promise<Asked> {
  const { promise: late, resolve } = Promise.withResolvers<null>();
  const timer = setTimeout(resolve, ANSWER_MS_MAX, null);
  const answer = await Promise.race([requests.send(operation, request), late]);
  clearTimeout(timer);
  if (answer === null) return { answer, faults: [`no answer within ${ANSWER_MS_MAX} ms`] };
  const { status, text } = answer;
  // These statuses are documented, but a hostile value is no reason for them.
  if (status >= 500 || status === 429) return { answer, faults: [`${status} ${text}`] };
  return { answer, faults: findAnswerFaults(published, operation, answer) };
}

test.each(Object.keys(OPERATIONS))("%s answers every hostile value as it is documented", async (id) => {
  const operation = published.operations.find((operation) => operation.id === id);
  if (operation === undefined) throw new Error("it is not documented");
  const attempts = attack(operation);
  const accepted: Record<string, number> = {};
  const wrong: string[] = [];
  const lanes = Array.from({ length: REQUESTS_AT_ONCE }, async () => {
    const path = await requests.pathOf(operation);
    for (const { place, value, requestTo } of attempts) {
      if ((accepted[place] ?? 0) >= ACCEPTED_MAX) continue;
      const { answer, faults } = await askAndLook(operation, requestTo(path));
      if (answer !== null && answer.status < 300) accepted[place] = (accepted[place] ?? 0) + 1;
      wrong.push(...faults.map((fault) => `${place} = ${value.slice(0, VALUE_SHOWN_MAX)}: ${fault}`));
    }
  });
  await Promise.all(lanes);
  expect(wrong.slice(0, FAULTS_SHOWN_MAX)).toEqual([]);
  for (const { status } of await requests.succeed(operation)) expect(status).toBeLessThan(300);
});
