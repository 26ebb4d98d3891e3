import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Answer } from "../../support/gateway.ts";
import { type ProxiedGateway, startProxiedGateway } from "../../support/proxied-gateway.ts";
import {
  findAnswerFaults,
  type Json,
  type Published,
  type PublishedOperation,
  readPublished,
} from "./published.ts";
import { prepareRequests, type Requests } from "./requests.ts";

const TEST_TIMEOUT_MS = 300_000;

/** A refusal's message, without its numbers. */
const messageOf = ({ code, message }: { code: string; message: string }) =>
  `${code}: ${message.replace(/\d+(?:\.\d+)?/g, "N")}`;

let proxied: ProxiedGateway;
let published: Published;
let requests: Requests;

beforeAll(async () => {
  proxied = await startProxiedGateway({ logLevel: "silent" });
  const { gateway, proxy } = proxied;
  published = await readPublished(gateway);
  requests = await prepareRequests(gateway, async (act) => {
    proxy.cut();
    try {
      return await act();
    } finally {
      proxy.mend();
    }
  });
});
afterAll(async () => {
  await requests.stop();
  await proxied.stop();
});

describe("the published document", () => {
  test(
    "describes every answer that each operation really gives, and no other",
    async () => {
      const produced = new Set<string>();
      const wrong: string[] = [];
      const messages = new Set<string>();
      const judge = (operation: PublishedOperation, answer: Answer, asked: string) => {
        const { error } = JSON.parse(answer.text);
        const seen = `${operation.id} ${answer.status} ${error?.code ?? "success"}`;
        produced.add(seen);
        if (error?.code !== undefined) messages.add(messageOf(error));
        for (const fault of findAnswerFaults(published, operation, answer))
          wrong.push(`${seen} (${asked}): ${fault}`);
      };
      for (const operation of published.operations) {
        for (const answer of await requests.succeed(operation)) judge(operation, answer, "success");
        for (const [code, provoke] of Object.entries(requests.provocations)) {
          judge(operation, await provoke(operation), code);
        }
      }
      const documented = published.operations.flatMap(({ id, answers }) =>
        answers.flatMap(({ status, codes }) =>
          (codes.length === 0 ? ["success"] : codes).map((code) => `${id} ${status} ${code}`),
        ),
      );
      expect(wrong).toEqual([]);
      expect([...produced].sort()).toEqual(documented.sort());
      const examples: { value: Json }[] = published.operations
        .flatMap(({ answers }) => answers.filter(({ codes }) => codes.length > 0))
        .flatMap(({ schemaPlace }) =>
          Object.values(published.look(schemaPlace.replace(/schema$/, "examples"))),
        );
      // An invalid request can be refused for many more reasons than are provoked here.
      const shown = examples.map(({ value }) => value.error).filter(({ code }) => code !== "invalid_request");
      expect(shown.map(messageOf).filter((message) => !messages.has(message))).toEqual([]);
      expect(documented.length).toBeGreaterThan(published.operations.length * 7);
    },
    TEST_TIMEOUT_MS,
  );

  test("describes the replayed answer of each POST", async () => {
    const creations = published.operations.filter(({ method }) => method === "POST");
    expect(creations.length).toBeGreaterThan(2);
    for (const operation of creations) {
      const answer = await requests.replay(operation);
      expect(findAnswerFaults(published, operation, answer), operation.id).toEqual([]);
      expect(answer.headers.get("idempotent-replayed")).toBe("true");
    }
  });

  test("reports an answer that differs from its description", async () => {
    const operation = published.operations.find(({ id }) => id === "getProject");
    if (operation === undefined) throw new Error("there is no getProject");
    const [answer] = await requests.succeed(operation);
    if (answer === undefined) throw new Error("there is no answer");
    const project = JSON.parse(answer.text);
    const withBody = (body: object) =>
      findAnswerFaults(published, operation, { ...answer, text: JSON.stringify(body) });
    const withHeader = (name: string, value: string | null) => {
      const headers = new Headers(answer.headers);
      if (value === null) headers.delete(name);
      else headers.set(name, value);
      return findAnswerFaults(published, operation, { ...answer, headers });
    };
    expect(findAnswerFaults(published, operation, answer)).toEqual([]);
    expect(withBody({ ...project, extra: 1 })).not.toEqual([]);
    expect(withBody({ ...project, limits: { ...project.limits, extra: 1 } })).not.toEqual([]);
    expect(withBody({ ...project, plan: "gold" })).not.toEqual([]);
    expect(withBody({ ...project, id: "prj_1" })).not.toEqual([]);
    expect(withHeader("Retry-After", "1")).not.toEqual([]);
    expect(withHeader("RateLimit-Limit", "many")).not.toEqual([]);
    expect(withHeader("Request-Id", null)).not.toEqual([]);
    expect(findAnswerFaults(published, operation, { ...answer, status: 202 })).not.toEqual([]);
  });
});
