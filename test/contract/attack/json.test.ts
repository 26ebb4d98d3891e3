import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  parseRaw,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { expectNoTrace, head, JSON_TYPE } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const MEBIBYTE = 1_048_576;
/** The size of a refused batch: more than a million members. */
const LARGE_BYTES = 9_500_000;
const post = (path: string, body: string) => gateway.call("POST", path, { key: project.production, body });
const jobOf = (payload: string) => `{"target_url":"${TARGET_URL}","payload":${payload}}`;
const batchOf = (...jobs: string[]) => `{"jobs":[${jobs}]}`;
const nested = (depth: number) => `{"a":${"[".repeat(depth - 1)}${"]".repeat(depth - 1)}}`;
const members = (bytes: number) => {
  let text = "";
  for (let n = 0; text.length < bytes - 20; n++) text += `${n === 0 ? "" : ","}"${n.toString(36)}":0`;
  return `{${text}}`;
};

describe("a payload", () => {
  test.each<[string, string]>([
    ["63 containers deep", nested(63)],
    ["digits in tens of thousands", `{"a":${"1".repeat(200_000)},"b":0.${"0".repeat(50_000)}1}`],
    ["an exponent beyond all numbers", '{"a":1e999999,"b":-1E+999999,"c":1e-999999,"d":-0,"e":0.10}'],
    ["an integer beyond double precision", '{"a":9007199254740993}'],
    ["lone surrogates and an escaped NUL", '{"a":"\\ud800","\\udfff":"\\u0000"}'],
    [
      "names that objects have anyway",
      '{"__proto__":{"a":1},"constructor":{"prototype":{}},"toString":null}',
    ],
    ["the same names one below the other", '{"a":{"a":{"a":1}},"A":1}'],
    ["tens of thousands of members", members(262_000)],
    ["an array of 100,000 entries", `{"a":[${"0,".repeat(100_000)}0]}`],
    ["fields that a job has itself", '{"payload":{"jobs":[1]},"target_url":"http://127.0.0.1"}'],
  ])("is answered as it was written, alone and in a batch: %s", async (_, payload) => {
    const alone = await post("/v2/jobs", jobOf(payload));
    expect(alone.text).toContain(`"payload":${payload},`);
    const { id } = JSON.parse(alone.text) as { id: string };
    const shown = await gateway.call("GET", `/v2/jobs/${id}`, { key: project.production });
    expect(shown.text).toBe(alone.text);
    // A batch entry is two containers deeper.
    const entries = payload === nested(63) ? nested(61) : payload;
    const batch = await post("/v2/jobs/batch", batchOf(jobOf("{}"), jobOf(entries)));
    expect(batch.text).toContain(`"payload":${entries},`);
  });
});

describe("a refused body leaves no trace", () => {
  const BOM = "\ufeff";
  test.each<[string, string, string | undefined]>([
    ["65 containers deep", jobOf(nested(64)), undefined],
    ["a million brackets", "[".repeat(MEBIBYTE - 1), undefined],
    [
      "two members of one name",
      '{"target_url":"https://a.example","target_url":"https://b.example"}',
      "target_url",
    ],
    [
      "two members of one name, one of them escaped",
      '{"target_url":"https://a.example","target\\u005furl":"https://b.example"}',
      "target_url",
    ],
    ["two payloads", `{"target_url":"${TARGET_URL}","payload":{},"payload":{"a":1}}`, "payload"],
    ["two members of one name deep in the payload", jobOf('{"a":[{"b":[{"c":1,"\\u0063":2}]}]}'), "payload"],
    ["a member named __proto__", `{"target_url":"${TARGET_URL}","__proto__":{"payload":{}}}`, "__proto__"],
    ["its fields in the prototype only", `{"__proto__":{"target_url":"${TARGET_URL}"}}`, "target_url"],
    ["a member named constructor", `{"target_url":"${TARGET_URL}","constructor":1}`, "constructor"],
    ["a byte order mark", BOM + jobOf("{}"), undefined],
    ["something behind it", `${jobOf("{}")}{}`, undefined],
    ["a NUL behind it", `${jobOf("{}")}\0`, undefined],
    ["a comma too many", '{"target_url":"https://a.example",}', undefined],
    ["a comment", '{"target_url":"https://a.example"/**/}', undefined],
    ["NaN", jobOf('{"a":NaN}'), undefined],
    ["Infinity", jobOf('{"a":-Infinity}'), undefined],
    ["a hexadecimal number", jobOf('{"a":0x10}'), undefined],
    ["a number with a zero before it", jobOf('{"a":01}'), undefined],
    ["a control character in a string", jobOf('{"a":"\n"}'), undefined],
    ["quotes of another kind", "{'target_url':'https://a.example'}", undefined],
    [
      "a number beyond all numbers where an integer belongs",
      `{"target_url":"${TARGET_URL}","retry_policy":{"max_attempts":1e999999}}`,
      "retry_policy.max_attempts",
    ],
    [
      "an integer in another spelling's clothes",
      `{"target_url":"${TARGET_URL}","retry_policy":{"max_attempts":"5"}}`,
      "retry_policy.max_attempts",
    ],
    [
      "a megabyte of digits where an integer belongs",
      `{"target_url":"${TARGET_URL}","retry_policy":{"max_attempts":${"1".repeat(MEBIBYTE - 100)}}}`,
      "retry_policy.max_attempts",
    ],
    ["a megabyte of URL", `{"target_url":"https://a.example/${"a".repeat(MEBIBYTE - 100)}"}`, "target_url"],
    ["a URL with an escaped NUL", '{"target_url":"https://a.example/\\u0000"}', "target_url"],
    ["a URL with a lone surrogate", '{"target_url":"https://a.example/\\ud800"}', "target_url"],
    [
      "a megabyte of an unknown name",
      `{"target_url":"${TARGET_URL}","${"a".repeat(MEBIBYTE - 100)}":1}`,
      "a".repeat(256),
    ],
    ["a million values", `{"target_url":"${TARGET_URL}","a":[${"0,".repeat(400_000)}0]}`, "a"],
    ["a payload that is an array", jobOf("[{}]"), "payload"],
    ["a payload that is a string", jobOf('"{}"'), "payload"],
    ["a payload that is null", jobOf("null"), "payload"],
    ["nothing but white space", " \n", undefined],
  ])("of a job: %s", async (_, body, param) => {
    await expectNoTrace(gateway, project, async () => {
      const { message } = readRefusal(await post("/v2/jobs", body), "invalid_request", param);
      expect(message.length).toBeLessThan(1_000);
    });
  });

  test.each<[string, string]>([
    ["UTF-16", Buffer.from(jobOf("{}"), "utf16le").toString("latin1")],
    ["an overlong slash", jobOf('{"a":"\u00c0\u00af"}')],
    ["an encoded surrogate", jobOf('{"a":"\u00ed\u00a0\u0080"}')],
    ["a character that breaks off", jobOf('{"a":"\u00e2\u0082"}')],
    ["a byte that no character begins with", jobOf('{"a":"\u00ff"}')],
    ["a character beyond Unicode", jobOf('{"a":"\u00f4\u0090\u0080\u0080"}')],
  ])("of a job in bytes that are not UTF-8: %s", async (_, latin1) => {
    const lines = head(project, "POST /v2/jobs", JSON_TYPE, `Content-Length: ${latin1.length}`);
    await expectNoTrace(gateway, project, async () => {
      const raw = await gateway.send(Buffer.from(`${lines}\r\n${latin1}`, "latin1"));
      readRefusal(parseRaw(raw), "invalid_request");
    });
  });

  test.each<[string, () => string, string | undefined]>([
    ["a million jobs", () => batchOf(`${"{},".repeat(1_000_000)}{}`), "jobs"],
    ["a million members", () => members(LARGE_BYTES), undefined],
    [
      "a million members in one payload, and a duplicate behind them",
      () => batchOf(jobOf(`${members(LARGE_BYTES - 200).slice(0, -1)},"0":1}`)),
      undefined,
    ],
    ["a payload 63 containers deep", () => batchOf(jobOf(nested(63))), undefined],
    ["9 MB of digits", () => batchOf("1".repeat(LARGE_BYTES - 20)), undefined],
    [
      "an entry of 9 MB beside its payload",
      () => batchOf(jobOf("{}").replace(":", `:"${"a".repeat(LARGE_BYTES - 200)}","x":`)),
      undefined,
    ],
  ])("of a batch: %s", async (_, body, param) => {
    await expectNoTrace(gateway, project, async () => {
      readRefusal(await post("/v2/jobs/batch", body()), "invalid_request", param);
    });
  });

  test("of a project's change, which has no payload", async () => {
    const patch = (body: string) => gateway.call("PATCH", "/v2/project", { key: project.production, body });
    await expectNoTrace(gateway, project, async () => {
      for (const name of ["\\u0000", "\\ud800", "a\\nb", "\u200b".repeat(81), " "]) {
        readRefusal(await patch(`{"name":"${name}"}`), "invalid_request", "name");
      }
      readRefusal(await patch(`{"payload":{"a":1,"a":2}}`), "invalid_request", "payload.a");
      readRefusal(await patch(`{"name":"a","name":"b"}`), "invalid_request", "name");
    });
  });
});
