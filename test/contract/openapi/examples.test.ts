import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { judgeResponse } from "../../../shared/domain/run.ts";
import { startTestGateway, type TestGateway } from "../../support/gateway.ts";
import { escapeStep, type Json, type Published, readPublished } from "./published.ts";

let gateway: TestGateway;
let published: Published;

beforeAll(async () => {
  gateway = await startTestGateway();
  published = await readPublished(gateway);
});
afterAll(() => gateway.stop());

/** Every object of the document with this member, with its place. */
function findHolders(member: string, node: Json = published.document, place = "#"): [string, Json][] {
  if (typeof node !== "object" || node === null) return [];
  const inner = Object.entries(node).flatMap(([name, value]) =>
    findHolders(member, value, `${place}/${escapeStep(name)}`),
  );
  return member in node ? [[place, node], ...inner] : inner;
}

describe("the published document", () => {
  test("has examples for every body, and they fit its schema", () => {
    const contents = findHolders("content").map(([place]) => `${place}/content/application~1json`);
    expect(contents.length).toBeGreaterThan(published.operations.length);
    for (const place of contents) {
      const examples: Json[] = Object.values(published.look(`${place}/examples`));
      expect(examples.length, place).toBeGreaterThan(0);
      for (const { value } of examples) {
        expect(published.findFaults(`${place}/schema`, value), place).toEqual([]);
      }
    }
  });

  test("has an example of every code that an operation answers", () => {
    for (const { id, answers } of published.operations) {
      for (const { schemaPlace, codes } of answers) {
        const examples: Json[] = Object.values(published.look(schemaPlace.replace(/schema$/, "examples")));
        if (codes.length === 0) continue;
        expect(
          examples.map(({ value }) => value.error.code),
          id,
        ).toEqual(codes);
      }
    }
  });

  test("has examples of failed attempts with the errors that the service writes", () => {
    const headers = { location: null, retryAfter: null, serviceNoRetry: null, contentEncoding: null };
    const empty = { body: new Uint8Array(), bodyBytes: 0, bodyEnd: "complete" as const };
    const failed = findHolders("response_status").filter(
      ([, { error, response_status: status }]) => typeof error === "string" && typeof status === "number",
    );
    expect(failed.length).toBeGreaterThan(2);
    for (const [place, { error, response_status: status }] of failed) {
      const outcome = judgeResponse({ kind: "answered", status, headers, ...empty }, 0, 1_000);
      expect(error, place).toBe(outcome.error);
    }
  });

  test("has examples and defaults of fields that fit their schemas", () => {
    const schemas = findHolders("type").filter(
      ([place]) => !/\/(?:properties|examples\/.*|securitySchemes\/\w+)$/.test(place),
    );
    expect(schemas.length).toBeGreaterThan(20);
    for (const [place, { examples = [], default: fallback }] of schemas) {
      for (const value of fallback === undefined ? examples : [...examples, fallback]) {
        expect(published.findFaults(place, value), place).toEqual([]);
      }
    }
  });

  test("allows further members only in the payload", () => {
    const open = findHolders("type").filter(
      ([, node]) => node.type === "object" && node.additionalProperties !== false,
    );
    expect(open.map(([place]) => place)).toEqual(["#/components/schemas/Payload"]);
  });

  test("has the bounds and defaults of the contract", () => {
    const { schemas, parameters } = published.document.components;
    const policy = schemas.RetryPolicyRequest.properties;
    const bounds = ({ minimum, maximum, default: fallback }: Json) => [minimum, maximum, fallback];
    expect(bounds(policy.max_attempts)).toEqual([1, 25, 5]);
    expect(bounds(policy.base_seconds)).toEqual([1, 86_400, 10]);
    expect(bounds(policy.cap_seconds)).toEqual([1, 86_400, 3_600]);
    expect(schemas.NewJobRequest.required).toEqual(["target_url"]);
    expect(schemas.NewJobRequest.properties.payload.default).toEqual({});
    expect(schemas.NewJobRequest.properties.target_url.maxLength).toBe(2_048);
    expect(schemas.ProjectUpdateRequest.properties.name.maxLength).toBe(80);
    const { minItems, maxItems } = schemas.JobBatchRequest.properties.jobs;
    expect([minItems, maxItems]).toEqual([1, 100]);
    expect(parameters.IdempotencyKey.schema.maxLength).toBe(255);
    for (const path of ["/v2/jobs", "/v2/runs"]) {
      const limit = published.document.paths[path].get.parameters.find(({ name }: Json) => name === "limit");
      expect(bounds(limit.schema)).toEqual([1, 200, 50]);
    }
  });
});
