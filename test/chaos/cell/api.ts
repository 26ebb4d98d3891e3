import type { Random } from "../../simulation/cell/random.ts";
import type { Recording } from "./recording.ts";

/**
 * The outcome of a request: an answer below 500, or unknown, since no answer tells whether it took place. `isRepeated` if an
 * earlier try had no answer. That try may still take place after this answer.
 */
export type Answered =
  | { kind: "answered"; status: number; body: never; isRepeated: boolean }
  | { kind: "unknown" };

const REQUEST_TIMEOUT_MS = 4_000;
const ASK_AGAIN_MS = 600;
/** A cell in trouble may answer with this status. Every other status of 500 or more is a fault. */
const UNAVAILABLE = 503;
export const REFUSED_FOR_ITS_RATE = 429;

/** A client of the cell: it asks any gateway, and can repeat requests that were not answered. */
export class Api {
  constructor(
    private readonly bases: () => readonly string[],
    private readonly key: string,
    private readonly project: number,
    private readonly recording: Recording,
    private readonly random: Random,
  ) {}

  async ask(
    method: string,
    path: string,
    { body, key }: { body?: string; key?: string } = {},
  ): Promise<Answered> {
    const { recording } = this;
    const askedAt = recording.now;
    try {
      const response = await fetch(`${this.random.pick(this.bases())}${path}`, {
        method,
        headers: {
          authorization: `Bearer ${this.key}`,
          ...(body !== undefined && { "content-type": "application/json" }),
          ...(key !== undefined && { "idempotency-key": key }),
        },
        ...(body !== undefined && { body }),
        // On a kept connection that was closed, Bun would send the request a second time by itself.
        keepalive: false,
        signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
      });
      const { status, headers } = response;
      const text = await response.text();
      recording.meet(`answer: ${status}`);
      if (headers.has("idempotent-replayed")) recording.meet("answer: replayed");
      if (status >= 500) {
        if (status !== UNAVAILABLE)
          recording.faults.push(`${method} ${path} was answered ${status}: ${text}`);
        return { kind: "unknown" };
      }
      if (status < 300)
        recording.note({ kind: "request accepted", askedAt, at: recording.now, project: this.project });
      return { kind: "answered", status, body: JSON.parse(text) as never, isRepeated: false };
    } catch {
      recording.meet("answer: lost");
      return { kind: "unknown" };
    }
  }

  /** Repeats the request until it is answered, through all faults. */
  async untilAnswered(
    method: string,
    path: string,
    options: { body?: string; key?: string } = {},
  ): Promise<Answered & { kind: "answered" }> {
    for (let isRepeated = false; ; isRepeated = true) {
      const answered = await this.ask(method, path, options);
      // The gateway checks the rate before the key: a refusal for the rate says nothing of the tries before.
      if (answered.kind === "answered" && !(isRepeated && answered.status === REFUSED_FOR_ITS_RATE))
        return { ...answered, isRepeated };
      await Bun.sleep(ASK_AGAIN_MS);
    }
  }
}
