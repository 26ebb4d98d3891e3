import { onAbort } from "./abort.ts";
import { type BulkOperations, createBulkOperations } from "./bulk.ts";
import { createFlows, type Flows } from "./flows.ts";
import { createHosts, type Hosts } from "./hosts.ts";
import { createJobs, type Jobs } from "./jobs.ts";
import { createKeys, type Keys } from "./keys.ts";
import { createPayloadWriter } from "./payload.ts";
import { createProject, type Projects } from "./project.ts";
import { createRuns, type Runs } from "./runs.ts";
import { createSchedules, type Schedules } from "./schedules.ts";
import { readSealKeys, type SealKey } from "./seal-key.ts";
import { createSend, type RequestOptions, type Surroundings } from "./send.ts";
import { createTestClock, type TestClock } from "./test-clock.ts";
import { createWebhooks, type Webhooks } from "./webhooks.ts";

export interface Client {
  jobs: Jobs;
  bulk: BulkOperations;
  flows: Flows;
  schedules: Schedules;
  runs: Runs;
  project: Projects;
  hosts: Hosts;
  webhooks: Webhooks;
  keys: Keys;
  testClock: TestClock;
}

/** Request options given here are the defaults of all requests. */
export interface ClientOptions extends RequestOptions, Partial<Surroundings> {
  /**
   * The key decides the project and the environment. Undefined is refused at once: it is allowed here so that
   * `process.env.JOBWHEEL_KEY` can be given as it is.
   */
  apiKey: string | undefined;
  /** The service's address without `/v2`, such as https://jobs.example.com. Undefined is refused as in `apiKey`. */
  baseUrl: string | undefined;
  /**
   * The address of `testClock`: OPS_PORT of the instance. Default: port 9090 of the host of `baseUrl`. No key is sent there.
   */
  opsUrl?: string | undefined;
  /**
   * Seals the payloads of jobs and schedules before they leave this process: targets open them with `openWith`, and the
   * service never sees the text (`makeSealKey`). Undefined is refused as in `apiKey`.
   */
  sealWith?: SealKey | undefined;
}

/** A client holds no connection and needs no end. Throws TypeError for options that cannot work. */
export function createClient(options: ClientOptions): Client {
  const { fetch, now, random, sleep, sealWith, opsUrl, ...rest } = options;
  const [sealKey] = "sealWith" in options ? readSealKeys("sealWith", [sealWith]) : [];
  const write = createPayloadWriter(sealKey);
  const baseUrl = readBaseUrl("baseUrl", options.baseUrl);
  const around = {
    fetch: fetch ?? ((url, init) => globalThis.fetch(url, init)),
    now: now ?? (() => performance.now()),
    random: random ?? Math.random,
    sleep: sleep ?? wait,
  } satisfies Surroundings;
  const send = createSend({ ...rest, baseUrl, apiKey: readApiKey(options.apiKey) }, around);
  const ops = opsUrl === undefined ? opsUrlOf(baseUrl) : readBaseUrl("opsUrl", opsUrl);
  return {
    jobs: createJobs(send, write),
    bulk: createBulkOperations(send),
    flows: createFlows(send),
    schedules: createSchedules(send, write),
    runs: createRuns(send),
    project: createProject(send),
    hosts: createHosts(send),
    webhooks: createWebhooks(send),
    keys: createKeys(send),
    testClock: createTestClock(createSend({ ...rest, baseUrl: ops, apiKey: null }, around)),
  };
}

function readBaseUrl(name: string, text: string | undefined): string {
  const given = readGiven(name, text, "the address of the service, such as https://jobs.example.com");
  if (!URL.canParse(given)) {
    throw new TypeError(`${name} must be a whole URL such as https://jobs.example.com.`);
  }
  const { protocol, origin, pathname, username } = new URL(given);
  if ((protocol !== "https:" && protocol !== "http:") || username !== "") {
    throw new TypeError(`${name} must be an https or http URL without credentials.`);
  }
  return origin + pathname.replace(/\/+$/, "");
}

/** OPS_PORT is 9090 unless it was set. */
export function opsUrlOf(baseUrl: string): string {
  const url = new URL(baseUrl);
  url.port = "9090";
  return url.origin;
}

/** A line feed at the end of a key is common. `fetch` would quote the key in its error, so such a key is refused. */
function readApiKey(text: string | undefined): string {
  const given = readGiven("apiKey", text, "a key of the project (svc_dev_... or svc_live_...)");
  if (/^[\x21-\x7e]+$/.test(given)) return given;
  throw new TypeError("apiKey must be a key as it was shown at its creation, without blanks.");
}

function readGiven(name: string, value: string | undefined, wanted: string): string {
  if (typeof value === "string" && value !== "") return value;
  const found = value === "" ? "empty" : value === undefined || value === null ? String(value) : "no text";
  throw new TypeError(
    `${name} is ${found}: pass ${wanted}. If it comes from an environment variable, set that variable first.`,
  );
}

function wait(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      forget();
      resolve();
    };
    const timer = setTimeout(end, signal?.aborted ? 0 : ms);
    const forget = onAbort(signal, end);
  });
}
