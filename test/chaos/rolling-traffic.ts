import type { ServiceProcess } from "../support/service-process.ts";

/** The requests of customers to a cell whose processes are replaced, and the balancer before its gateways. */

const REQUEST_TIMEOUT_MS = 30_000;
const ASK_EVERY_MS = 50;
const ASK_AGAIN_MS = 500;
/** A job of `later` is due after this time. */
const LATER_MS = 2_500;
const BATCH_JOBS = 3;

interface Answer {
  status: number;
  text: string;
  isReplayed: boolean;
}

/**
 * An HTTP load balancer as Kubernetes drives it: it sends to the gateways that are ready, in turn, and each request on
 * a connection of its own. It tries no request again, so that every request that a gateway refuses or cuts is seen.
 */
export class Balancer {
  readonly #ready = new Set<ServiceProcess>();
  readonly #open = new Map<ServiceProcess, number>();
  #turn = 0;

  /** The gateway has said that it is ready. */
  add(gateway: ServiceProcess): void {
    this.#ready.add(gateway);
  }

  /** The balancer has heard that the gateway goes: it sends nothing new to it. */
  remove(gateway: ServiceProcess): void {
    this.#ready.delete(gateway);
  }

  /** How many requests the gateway has not answered yet. */
  openAt(gateway: ServiceProcess): number {
    return this.#open.get(gateway) ?? 0;
  }

  async send(path: string, init: RequestInit, chosen?: ServiceProcess): Promise<Answer> {
    const gateway = chosen ?? [...this.#ready][this.#turn++ % this.#ready.size];
    if (gateway === undefined) throw new Error("no gateway is ready");
    this.#open.set(gateway, this.openAt(gateway) + 1);
    try {
      const signal = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
      const options = { ...init, signal, keepalive: false };
      const response = await fetch(`http://127.0.0.1:${gateway.port}${path}`, options);
      const isReplayed = response.headers.get("idempotent-replayed") === "true";
      return { status: response.status, text: await response.text(), isReplayed };
    } finally {
      this.#open.set(gateway, this.openAt(gateway) - 1);
    }
  }
}

/** A request that was not answered as it should be. */
export interface FailedRequest {
  at: number;
  /** The number of the request, which stands in the payloads of the jobs that it asked for. */
  request: number;
  what: Kind;
  outcome: string;
}

const TURNS = [
  "single",
  "single",
  "keyed",
  "single",
  "batch",
  "later",
  "single",
  "read",
  "single",
  "keyed",
] as const;
type Kind = (typeof TURNS)[number] | "upload";

/** The customers of some projects, by their keys. */
export class Traffic {
  /** The ids of the jobs that were answered with 201. */
  readonly accepted = new Set<string>();
  readonly failed: FailedRequest[] = [];
  readonly asked: Partial<Record<Kind, number>> = {};
  #requests = 0;
  readonly #open = new Set<Promise<void>>();
  #timer: Timer | undefined;

  constructor(
    readonly balancer: Balancer,
    readonly keys: readonly string[],
    readonly targetUrl: string,
  ) {}

  /**
   * Asks on behalf of a project, and again after a 503, as the API asks clients to. These requests are not judged.
   * Throws if the answer is no success.
   */
  async ask<T>(project: number, method: "POST" | "PATCH", path: string, body: object): Promise<T> {
    const key = method === "POST" ? { "idempotency-key": crypto.randomUUID() } : {};
    const init = { method, headers: { ...this.#headers(project), ...key }, body: JSON.stringify(body) };
    let { status, text } = await this.balancer.send(path, init);
    while (status === 503) {
      await Bun.sleep(ASK_AGAIN_MS);
      ({ status, text } = await this.balancer.send(path, init));
    }
    if (status > 299) throw new Error(`${method} ${path}: ${status} ${text}`);
    return JSON.parse(text) as T;
  }

  begin(): void {
    this.#timer = setInterval(() => {
      const open = this.#ask().finally(() => this.#open.delete(open));
      this.#open.add(open);
    }, ASK_EVERY_MS);
  }

  /** Resolves once everything that was asked is answered. */
  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all(this.#open);
  }

  /**
   * Begins to send a batch to this gateway, and resolves once the gateway has begun to read it. The batch is sent to
   * its end when `finish` is called, which resolves once the batch is answered.
   */
  async beginUpload(gateway: ServiceProcess): Promise<{ finish(): Promise<void> }> {
    const request = ++this.#requests;
    const text = this.#batchText(request);
    const rest = Promise.withResolvers<void>();
    const half = text.length / 2;
    const body = new ReadableStream({
      async start(controller) {
        const encoder = new TextEncoder();
        controller.enqueue(encoder.encode(text.slice(0, half)));
        await rest.promise;
        controller.enqueue(encoder.encode(text.slice(half)));
        controller.close();
      },
    });
    const answered = this.#judge("upload", request, async () => {
      const answer = await this.#post("/v2/jobs/batch", request, { body }, gateway);
      this.#accept(answer);
    });
    // The gateway takes connections in their order, so it has the upload's connection when it answers these requests.
    for (let count = 0; count < 2; count++) await this.balancer.send("/openapi.json", {}, gateway);
    return {
      finish() {
        rest.resolve();
        return answered;
      },
    };
  }

  async #ask(): Promise<void> {
    const request = ++this.#requests;
    const kind = TURNS[request % TURNS.length] ?? "single";
    await this.#judge(kind, request, () => this.#send(kind, request));
  }

  async #send(kind: Kind, request: number): Promise<void> {
    if (kind === "read") {
      const answer = await this.balancer.send("/v2/jobs?limit=5", { headers: this.#headers(request) });
      if (answer.status !== 200) throw new Error(`${answer.status} ${answer.text}`);
      return;
    }
    if (kind === "batch") {
      const body = this.#batchText(request);
      return this.#accept(await this.#post("/v2/jobs/batch", request, { body }));
    }
    const isLater = kind === "later" && { run_at: new Date(Date.now() + LATER_MS).toISOString() };
    const body = JSON.stringify({ ...this.#wish(request), ...isLater });
    const key = kind === "keyed" ? { "idempotency-key": `key-${request}` } : {};
    const first = await this.#post("/v2/jobs", request, { body, headers: key });
    this.#accept(first);
    if (kind !== "keyed") return;
    // Another gateway answers, perhaps of another version.
    const again = await this.#post("/v2/jobs", request, { body, headers: key });
    this.#accept(again);
    if (!again.isReplayed || idsOf(again)[0] !== idsOf(first)[0])
      throw new Error(`${first.text} was answered again as ${again.text}`);
  }

  #post(path: string, request: number, init: RequestInit, gateway?: ServiceProcess): Promise<Answer> {
    const headers = { ...this.#headers(request), ...(init.headers as Record<string, string>) };
    return this.balancer.send(path, { ...init, method: "POST", headers }, gateway);
  }

  #headers(request: number): Record<string, string> {
    const authorization = `Bearer ${this.keys[request % this.keys.length]}`;
    return { authorization, "content-type": "application/json" };
  }

  /** One job in four takes some seconds, and one in ten fails at first. */
  #wish(request: number, place = 0) {
    const number = request + 7 * place;
    return {
      target_url: this.targetUrl,
      region: number % 3 === 0 ? "eu-central" : "us-east",
      payload: {
        request,
        wait_ms: number % 4 === 0 ? 500 + ((number * 37) % 2_500) : 10,
        fails: number % 10 === 1,
      },
      retry_policy: { base_seconds: 1, cap_seconds: 1 },
    };
  }

  #batchText(request: number): string {
    const jobs = Array.from({ length: BATCH_JOBS }, (_, place) => this.#wish(request, place));
    return JSON.stringify({ jobs });
  }

  #accept(answer: Answer): void {
    if (answer.status !== 201) throw new Error(`${answer.status} ${answer.text}`);
    for (const id of idsOf(answer)) this.accepted.add(id);
  }

  async #judge(what: Kind, request: number, act: () => Promise<void>): Promise<void> {
    this.asked[what] = (this.asked[what] ?? 0) + 1;
    try {
      await act();
    } catch (error) {
      this.failed.push({ at: Date.now(), request, what, outcome: String(error) });
    }
  }
}

function idsOf({ text }: Answer): string[] {
  const { id, data } = JSON.parse(text) as { id?: string; data?: { id: string }[] };
  return data?.map((job) => job.id) ?? [id ?? ""];
}
