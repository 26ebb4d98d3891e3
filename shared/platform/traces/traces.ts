import type { TraceContext } from "../../domain/trace.ts";
import type { Log } from "../log.ts";

/** Where spans go, and how many of the traces that nobody asked for do. Null: nothing is recorded. */
export type TraceSettings = { endpoint: string; ratio: number } | null;

export type Attributes = Readonly<Record<string, string | number>>;

/** A span that is being recorded. Instants are milliseconds since 1970, by the clock that all nodes share. */
export interface Span {
  readonly context: TraceContext;
  /** A request within it to another host, which its context goes along with. */
  beginRequest(name: string, at: number): Span;
  note(name: string, at: number): void;
  end(at: number, outcome: { attributes: Attributes; isError: boolean }): void;
}

/** What is only made where a span is. */
export interface Beginning {
  name: string;
  kind: "server" | "internal" | "consumer";
  at: number;
  /** The trace of what has no parent has its 128 bits. */
  id: string;
  attributes: Attributes;
}

export interface Traces {
  /**
   * Null where nothing is to be recorded: what has a parent follows its flag, what has none may begin a trace by lot, and
   * neither more often than a process may. Nothing in a span comes from a payload, a key, a secret or a target's URL.
   */
  begin(parent: TraceContext | null, projectNo: number, describe: () => Beginning): Span | null;
  /** Sends what is still here, as far as that is quickly done. */
  stop(): Promise<void>;
}

export const NO_TRACES: Traces = { begin: () => null, async stop() {} };

/**
 * In one process. A client says by its flag what is recorded, so that none may flood the collector with that, nor take
 * what is there for the others.
 */
const RECORDED_PER_SECOND_MAX = 200;
const RECORDED_PER_SECOND_OF_PROJECT_MAX = 40;

/** How spans are made and sent. */
export interface Recorder {
  begin(parent: TraceContext | null, beginning: Beginning): Span;
  stop(): Promise<void>;
}

/** The recorder and the packages that it is made of take a tenth of a second and 24 MB: only who wants traces has them. */
export async function startTraces(options: {
  service: string;
  nodeName: string;
  settings: TraceSettings;
  log: Log;
}): Promise<Traces> {
  const { settings } = options;
  if (settings === null) return NO_TRACES;
  const { startRecorder } = await import("./recorder.ts");
  return chooseTraces(settings.ratio, startRecorder({ ...options, endpoint: settings.endpoint }));
}

/** `now` counts milliseconds from anywhere; `random` is in [0, 1). */
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
