import type { Outbound, OutboundRequest } from "../../../services/delivery/outbound.ts";
import type { AnswerHeaders, Exchange } from "../../../shared/domain/run.ts";
import type { ClockReading } from "../../support/history/history.ts";
import type { Random } from "./random.ts";
import type { Recording } from "./recording.ts";
import type { SimProcess } from "./sim-process.ts";
import type { Timeline } from "./timeline.ts";

/** How a target answers. The habit stands in the target's URL. */
export const HABITS = [
  "good",
  "bad",
  "flaky",
  "slow",
  "silent",
  "refusing",
  "closing",
  "final",
  "busy",
] as const;
export type Habit = (typeof HABITS)[number];

const LATENCY_MS = { least: 0.5, end: 20 };
const QUICK_MS = { least: 1, end: 150 };
const SLOW_MS = { least: 500, end: 5_000 };
const NO_HEADERS: AnswerHeaders = {
  location: null,
  retryAfter: null,
  serviceNoRetry: null,
  contentEncoding: null,
};
const RETRY_AFTER_SECONDS = "2";

export const targetUrl = (host: number, habit: Habit): string => `https://host-${host}.example/${habit}`;

/** Describes a request for the history, as its target sees it. */
export type Describe = (request: OutboundRequest) => {
  what: "job" | "delivery";
  project: number;
  id: string;
  run: string;
  attempt: number | null;
};

/** Customers' hosts, behind the seam at which delivery sends its requests. */
export class Targets {
  private requestCount = 0;
  /** The numbers of hosts that cannot be reached. */
  readonly away = new Set<number>();
  /** Once everything has healed every target is good, unless its habit is bad or final. */
  isHealed = false;

  constructor(
    private readonly timeline: Timeline,
    private readonly recording: Recording,
    private readonly random: Random,
    private readonly readClock: () => ClockReading,
    private readonly describe: Describe,
  ) {}

  outboundOf(process: SimProcess): Outbound {
    return {
      post: (request) => {
        const { promise, resolve } = Promise.withResolvers<Exchange>();
        process.act("request", () => this.send(process, request, resolve));
        return promise;
      },
      async close() {},
    };
  }

  private send(process: SimProcess, request: OutboundRequest, resolve: (exchange: Exchange) => void): void {
    const habit = this.habitOf(request.url);
    this.recording.trace(() => `${process.name} posts to ${request.url} ${request.headers["webhook-id"]}`);
    const wayMs = this.random.between(LATENCY_MS.least, LATENCY_MS.end);
    let isOver = false;
    const end = (exchange: Exchange) => {
      if (isOver) return;
      isOver = true;
      resolve(exchange);
    };
    if (request.signal.aborted) {
      end({ kind: "faulted", message: "broken off before it was sent" });
      return;
    }
    if (habit === "refusing") {
      process.later(wayMs, () => end({ kind: "faulted", message: "connection refused" }));
      return;
    }
    const number = ++this.requestCount;
    let isLeft = false;
    const leave = (status: number | null) => {
      if (isLeft) return;
      isLeft = true;
      this.recording.note({ kind: "request left", at: this.timeline.now, request: number, status });
    };
    const isGone = () => isOver || process.state === "gone";
    const give = (exchange: Exchange) => this.timeline.in(wayMs, process, () => end(exchange));
    this.timeline.in(wayMs, null, () => {
      // A process that has died since has left nothing on the wire.
      if (isGone()) return;
      const clock = this.readClock();
      const event = { kind: "request arrived" as const, at: this.timeline.now, clock, request: number };
      this.recording.note({ ...event, ...this.describe(request), body: request.body });
      process.onEnd(() => leave(null));
      const answer = this.answerOf(habit);
      if (answer === null) return;
      this.timeline.in(answer.afterMs, null, () => {
        if (isGone()) return;
        leave(answer.exchange.kind === "answered" ? answer.exchange.status : null);
        give(answer.exchange);
      });
    });
    process.later(request.timeoutMs, () => {
      leave(null);
      end({ kind: "stalled" });
    });
    request.signal.addEventListener("abort", () => {
      leave(null);
      end({ kind: "faulted", message: "broken off" });
    });
  }

  /** Null if the target never answers. */
  private answerOf(habit: Habit): { afterMs: number; exchange: Exchange } | null {
    const { random } = this;
    const quickly = (exchange: Exchange) => ({
      afterMs: random.between(QUICK_MS.least, QUICK_MS.end),
      exchange,
    });
    switch (habit) {
      case "good":
        return quickly(answered(200));
      case "bad":
        return quickly(answered(500));
      case "flaky":
        return quickly(answered(random.chance(0.5) ? 200 : 500));
      case "slow":
        return { afterMs: random.between(SLOW_MS.least, SLOW_MS.end), exchange: answered(200) };
      case "silent":
        return null;
      case "refusing":
        return null;
      case "closing":
        return quickly(random.chance(0.5) ? answered(200) : { kind: "unknown" });
      case "final":
        return quickly(answered(400, { serviceNoRetry: "true" }));
      case "busy":
        return quickly(
          random.chance(0.3) ? answered(200) : answered(503, { retryAfter: RETRY_AFTER_SECONDS }),
        );
    }
  }

  private habitOf(url: string): Habit {
    const habit = HABITS.find((name) => url.endsWith(`/${name}`));
    if (habit === undefined) throw new Error(`no target has the URL ${url}`);
    this.recording.meet(`target: ${habit}`);
    const isAway = [...this.away].some((number) => url === targetUrl(number, habit));
    if (isAway && !this.isHealed) return "refusing";
    return this.isHealed && habit !== "bad" && habit !== "final" ? "good" : habit;
  }
}

function answered(status: number, headers: Partial<AnswerHeaders> = {}): Exchange {
  return {
    kind: "answered",
    status,
    headers: { ...NO_HEADERS, ...headers },
    body: new Uint8Array(),
    bodyBytes: 0,
    bodyEnd: "complete",
  };
}
