import type { TraceContext } from "../../domain/trace.ts";

/** The collector's address, and the part of traces recorded without a client's wish. Null turns recording off. */
export type TraceSettings = { endpoint: string; ratio: number } | null;

export type Attributes = Readonly<Record<string, string | number>>;

/** A span that is being recorded. Instants are milliseconds since 1970 by the database's clock. */
export interface Span {
  readonly context: TraceContext;
  /** Begins the span of a request to another host, which receives the span's context. */
  beginRequest(name: string, at: number): Span;
  note(name: string, at: number): void;
  end(at: number, outcome: { attributes: Attributes; isError: boolean }): void;
}

/** The description of a span, which is made only if the span is recorded. */
export interface Beginning {
  name: string;
  kind: "server" | "internal" | "consumer";
  at: number;
  /** A span without a parent begins the trace that has the 128 bits of this id. */
  id: string;
  attributes: Attributes;
}

export interface Traces {
  /**
   * Null if the span is not recorded. A span with a parent follows the parent's flag, one without a parent is chosen at
   * random, and both are limited per second. No span holds data from a payload, a key, a secret or a target's URL.
   */
  begin(parent: TraceContext | null, projectNo: number, describe: () => Beginning): Span | null;
  /** Sends the spans that still wait, within a short time. */
  stop(): Promise<void>;
}

export const NO_TRACES: Traces = { begin: () => null, async stop() {} };

/**
 * Limits for one process. Clients decide by their flag what is recorded, so one client must neither flood the collector nor
 * use up what the others may record.
 */
const RECORDED_PER_SECOND_MAX = 200;
const RECORDED_PER_SECOND_OF_PROJECT_MAX = 40;

/** Makes spans and sends them. */
export interface Recorder {
  begin(parent: TraceContext | null, beginning: Beginning): Span;
  stop(): Promise<void>;
}

/** Decides which spans are recorded. `now` counts milliseconds from any start; `random` is in [0, 1). */
export function chooseTraces(
  ratio: number,
  recorder: Recorder,
  { now, random }: { now(): number; random(): number } = {
    now: () => performance.now(),
    random: Math.random,
  },
): Traces {
  let second = 0;
  let count = 0;
  const countOf = new Map<number, number>();

  function mayRecord(projectNo: number): boolean {
    const thisSecond = Math.floor(now() / 1_000);
    if (thisSecond !== second) {
      second = thisSecond;
      count = 0;
      countOf.clear();
    }
    const ofProject = countOf.get(projectNo) ?? 0;
    if (count >= RECORDED_PER_SECOND_MAX || ofProject >= RECORDED_PER_SECOND_OF_PROJECT_MAX) return false;
    count++;
    countOf.set(projectNo, ofProject + 1);
    return true;
  }

  return {
    begin(parent, projectNo, describe) {
      const isWanted = parent === null ? random() < ratio : parent.isSampled;
      return isWanted && mayRecord(projectNo) ? recorder.begin(parent, describe()) : null;
    },
    stop: () => recorder.stop(),
  };
}
