import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Answer } from "../../support/gateway.ts";
import { type ProxiedGateway, startProxiedGateway } from "../../support/proxied-gateway.ts";
import { type Published, type PublishedOperation, readPublished } from "./published.ts";
import { prepareRequests, type Requests } from "./requests.ts";

/** What HTTP itself adds; a document need not speak of it. */
const HTTP_HEADERS = ["connection", "content-length", "content-type", "date"];
const TEST_TIMEOUT_MS = 60_000;

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
afterAll(() => proxied.stop());

/** What the answer has that its operation does not document, and what it lacks that is documented. */
function findFaults({ answers }: PublishedOperation, answer: Answer): string[] {
  const documented = answers.find(({ status }) => status === answer.status);
  if (documented === undefined) return [`the status ${answer.status} is not documented`];
  const faults = published.findFaults(documented.schemaPlace, JSON.parse(answer.text));
  for (const { name, required, schemaPlace } of documented.headers) {
    const value = answer.headers.get(name);
    if (value === null && required) faults.push(`${name} is absent`);
    if (value === null) continue;
    const isNumber = published.look(schemaPlace).type === "integer";
    for (const fault of published.findFaults(schemaPlace, isNumber ? Number(value) : value)) {
      faults.push(`${name} ${fault}`);
    }
  }
  const names = documented.headers.map(({ name }) => name.toLowerCase());
  for (const name of answer.headers.keys()) {
    if (!names.includes(name) && !HTTP_HEADERS.includes(name)) faults.push(`${name} is not documented`);
  }
  if (answer.headers.get("content-type") !== "application/json") faults.push("it is no JSON");
  return faults;
}

describe("the published document", () => {
  test(
    "describes every answer of every operation as it really comes, and nothing that never comes",
    async () => {
      const produced = new Set<string>();
      const wrong: string[] = [];
      const judge = (operation: PublishedOperation, answer: Answer, asked: string) => {
        const { error } = JSON.parse(answer.text);
        const seen = `${operation.id} ${answer.status} ${error?.code ?? "success"}`;
        produced.add(seen);
        for (const fault of findFaults(operation, answer)) wrong.push(`${seen} (${asked}): ${fault}`);
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
      expect(documented.length).toBeGreaterThan(published.operations.length * 7);
    },
    TEST_TIMEOUT_MS,
  );

  test("describes the answer that a creation gives once more", async () => {
    const creations = published.operations.filter(({ method }) => method === "POST");
    expect(creations.length).toBeGreaterThan(2);
    for (const operation of creations) {
      const answer = await requests.replay(operation);
      expect(findFaults(operation, answer), operation.id).toEqual([]);
      expect(answer.headers.get("idempotent-replayed")).toBe("true");
    }
  });

  test("finds fault with what it does not describe", async () => {
    const operation = published.operations.find(({ id }) => id === "getProject");
    if (operation === undefined) throw new Error("there is no getProject");
    const [answer] = await requests.succeed(operation);
    if (answer === undefined) throw new Error("there is no answer");
    const project = JSON.parse(answer.text);
    const withBody = (body: object) => findFaults(operation, { ...answer, text: JSON.stringify(body) });
    const withHeader = (name: string, value: string | null) => {
      const headers = new Headers(answer.headers);
      if (value === null) headers.delete(name);
      else headers.set(name, value);
      return findFaults(operation, { ...answer, headers });
    };
    expect(findFaults(operation, answer)).toEqual([]);
    expect(withBody({ ...project, extra: 1 })).not.toEqual([]);
    expect(withBody({ ...project, limits: { ...project.limits, extra: 1 } })).not.toEqual([]);
    expect(withBody({ ...project, plan: "gold" })).not.toEqual([]);
    expect(withBody({ ...project, id: "prj_1" })).not.toEqual([]);
    expect(withHeader("Retry-After", "1")).not.toEqual([]);
    expect(withHeader("RateLimit-Limit", "many")).not.toEqual([]);
    expect(withHeader("Request-Id", null)).not.toEqual([]);
    expect(findFaults(operation, { ...answer, status: 202 })).not.toEqual([]);
  });
});
