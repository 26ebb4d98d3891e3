import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { STATUS_OF_CODE } from "../../shared/domain/errors.ts";
import { type Published, readPublished } from "../contract/openapi/published.ts";
import { startTestGateway, type TestGateway } from "../support/gateway.ts";

/** The table of the contract, word for word. A change of the codes must be repeated here. */
const TABLE: [number, string[]][] = [
  [400, ["invalid_request", "run_at_in_past", "invalid_cron_expression", "interval_too_short"]],
  [401, ["unauthorized"]],
  [403, ["plan_limit_exceeded", "insufficient_scope"]],
  [404, ["resource_not_found"]],
  [405, ["method_not_allowed"]],
  [408, ["request_timeout"]],
  [409, ["idempotency_conflict", "schedule_name_taken"]],
  [413, ["payload_too_large"]],
  [415, ["unsupported_media_type"]],
  [429, ["rate_limit_exceeded", "quota_exceeded"]],
  [500, ["internal_error"]],
  [503, ["service_unavailable"]],
];
const ALL = TABLE.flatMap(([status, codes]) => codes.map((code): [string, number] => [code, status]));

let gateway: TestGateway;
let published: Published;

beforeAll(async () => {
  gateway = await startTestGateway();
  published = await readPublished(gateway);
});
afterAll(() => gateway.stop());

describe("each error code has the one status of the contract", () => {
  test("in the code", () => {
    expect(Object.entries<number>(STATUS_OF_CODE).sort()).toEqual([...ALL].sort());
  });

  test("in every answer that the published document describes", () => {
    const answers = published.operations.flatMap(({ answers }) => answers);
    const described = answers.flatMap(({ status, codes }) => codes.map((code) => `${code} ${status}`));
    const known = ALL.map(([code, status]) => `${code} ${status}`);
    expect(described.filter((pair) => !known.includes(pair))).toEqual([]);
    expect(described.length).toBeGreaterThan(published.operations.length * 6);
  });

  test("in the published document's table and in its list of codes", () => {
    const rows = [...published.document.info.description.matchAll(/^\| (\d{3}) \| `(\w+)` \|/gm)];
    expect(rows.map(([, status, code]): [string, number] => [code ?? "", Number(status)]).sort()).toEqual(
      [...ALL].sort(),
    );
    const { ErrorCode } = published.document.components.schemas;
    expect([...ErrorCode.enum].sort()).toEqual(ALL.map(([code]) => code).sort());
  });
});
