import { expect } from "bun:test";
import { ApiError, type Client, createClient } from "../../shared/client/index.ts";
import { OPERATIONS } from "../../shared/contract/operations/all.ts";
import type { ErrorCode } from "../../shared/domain/errors.ts";
import { type Answer, readAs, readRefusal, type TestGateway } from "./gateway.ts";

/**
 * The official client with this key. It tries each request once, and requires each answer to be exactly what the
 * contract says of its operation: status, headers and fields.
 */
export function clientOf(gateway: TestGateway, apiKey: string, port = gateway.port): Client {
  return createClient({
    baseUrl: `http://127.0.0.1:${port}`,
    apiKey,
    retriesMax: 0,
    async fetch(url, init) {
      const response = await fetch(url, init);
      const { status, headers } = response;
      const text = await response.text();
      checkAnswer(init.method ?? "", new URL(url).pathname, { status, headers, text });
      return new Response(text, { status, headers });
    },
  });
}

/** Expects the call to be refused with this code, and for this field if there is one. Answers the refusal. */
export async function refusalOf(call: Promise<unknown>, code: ErrorCode, param?: string): Promise<ApiError> {
  const error = await call.then(
    () => new Error(`it was not refused with ${code}`),
    (reason: unknown) => reason,
  );
  if (!(error instanceof ApiError)) throw error;
  expect({ code: error.code, param: error.param }).toEqual({ code, param: param ?? null });
  return error;
}

function checkAnswer(method: string, path: string, answer: Answer): void {
  if (answer.status >= 400) {
    const { error } = JSON.parse(answer.text);
    readRefusal(answer, error.code, error.param);
    return;
  }
  const operation = Object.values(OPERATIONS).find(
    (known) => known.method === method && matches(known.path, path),
  );
  if (operation === undefined) throw new Error(`${method} ${path} is no operation`);
  const mayCreate = "mayCreate" in operation && answer.status === 201;
  readAs(operation.response.schema, answer, mayCreate ? 201 : operation.status);
}

function matches(pattern: string, path: string): boolean {
  return new RegExp(`^${pattern.replaceAll(/\{\w+\}/g, "[^/]+")}$`).test(path);
}
