import { readFileSync } from "node:fs";
import vm from "node:vm";

/**
 * A customer's program in plain JavaScript: `customer-program.mjs modules|sandbox <built client> <input as JSON>`
 * prints its findings as JSON. The sandbox has only the globals that browsers and edge runtimes have as well.
 */
const [mode, path, input] = process.argv.slice(2);
const { baseUrl, silentUrl, apiKey, targetUrl, received, secret } = JSON.parse(input);
const { createClient, ApiError, RawJson, verifySignature } =
  mode === "sandbox" ? loadInSandbox(path) : await import(path);

const warnings = [];
process.on("warning", ({ name }) => warnings.push(name));
const { signal } = new AbortController();
const client = createClient({ baseUrl, apiKey, signal, random: () => 0 });

const payload = new RawJson('{"id":9007199254740993}');
const { result: job, answer } = await client.jobs.create({ target_url: targetUrl, payload }).withAnswer();
const { data } = await client.jobs.createBatch(
  Array.from({ length: 20 }, (_, n) => ({ target_url: targetUrl, payload: { n } })),
);
const walked = [];
for await (const { id } of client.jobs.list({ limit: 6 })) walked.push(id);
const many = await Promise.all(data.map(({ id }) => client.jobs.get(id)));
const canceled = await client.jobs.cancel(job.id);
const refused = await client.jobs.create({ target_url: "nowhere" }).catch((error) => error);
const unheard = createClient({ baseUrl: silentUrl, apiKey });
const late = await unheard.project.get({ timeoutMs: 50, retriesMax: 0 }).catch((error) => error);
const aborted = await client.project.get({ signal: AbortSignal.abort("gone") }).catch((reason) => reason);
const forged = await verifySignature({ ...received, body: "{}" }, { secrets: secret }).catch(
  (error) => error,
);

console.log(
  JSON.stringify({
    isReplayed: answer.isReplayed,
    isExact: answer.text.includes("9007199254740993"),
    walked: walked.length,
    payloads: many.map(({ payload }) => payload.n),
    canceled: canceled.status,
    refused: [refused instanceof ApiError, refused.code, refused.param],
    late: late.name,
    aborted,
    verified: await verifySignature(received, { secrets: secret }),
    forged: forged.name,
    warnings,
  }),
);

function loadInSandbox(file) {
  const module = { exports: {} };
  const web = {
    AbortController,
    atob,
    clearTimeout,
    crypto,
    fetch,
    performance,
    setTimeout,
    TextDecoder,
    TextEncoder,
    URL,
    URLSearchParams,
  };
  vm.runInNewContext(readFileSync(file, "utf8"), { ...web, module, exports: module.exports });
  return module.exports;
}
