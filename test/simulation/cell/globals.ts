import { thread } from "../../../services/worker/thread.ts";
import type { SimProcess } from "./sim-process.ts";
import type { Entry, Timeline } from "./timeline.ts";

type Callback = (...values: unknown[]) => void;

/**
 * Replaces the clocks, timers and chance of this JavaScript realm with simulated ones while `act` runs. `act` is
 * synchronous, so nothing else in this process meets them. The simulated ones are those of the process whose entry
 * happens; code outside of every process may not use them.
 */
export function withSimulatedGlobals<Result>(timeline: Timeline, act: () => Result): Result {
  const present = (): SimProcess => {
    if (timeline.current === null)
      throw new Error("a clock, a timer or chance was used outside of every process");
    return timeline.current as SimProcess;
  };
  const setTimer = (run: Callback, ms = 0, ...values: unknown[]) =>
    handleOf(present().later(ms, () => run(...values)));
  const setRepeated = (run: Callback, ms = 0, ...values: unknown[]) => {
    const process = present();
    const handle = handleOf(process.later(ms, tick));
    function tick(): void {
      handle.entry = process.later(ms, tick);
      run(...values);
    }
    return handle;
  };
  const cancel = (handle: Handle | undefined | null) => {
    if (handle) handle.entry.isCanceled = true;
  };
  return withReplaced(
    [
      [performance, { now: () => present().performanceNow() }],
      [Date, { now: () => Math.floor(present().performanceNow()) }],
      [Math, { random: () => present().random.next() }],
      [thread, { sleep: (ms: number) => present().standStill(ms) }],
      [Bun, { sleep: (ms: number) => new Promise<void>((wake) => void present().later(ms, wake)) }],
      [
        globalThis,
        {
          setTimeout: setTimer,
          setInterval: setRepeated,
          setImmediate: (run: Callback, ...values: unknown[]) =>
            handleOf(present().later(null, () => run(...values))),
          clearTimeout: cancel,
          clearInterval: cancel,
          clearImmediate: cancel,
        },
      ],
    ],
    act,
  );
}

interface Handle {
  entry: Entry;
  ref(): Handle;
  unref(): Handle;
}

function handleOf(entry: Entry): Handle {
  const handle: Handle = { entry, ref: () => handle, unref: () => handle };
  return handle;
}

function withReplaced<Result>(replacements: [object, Record<string, unknown>][], act: () => Result): Result {
  const before = replacements.map(([target, names]) => {
    const kept = Object.fromEntries(Object.keys(names).map((name) => [name, Reflect.get(target, name)]));
    Object.assign(target, names);
    return [target, kept] as const;
  });
  try {
    return act();
  } finally {
    for (const [target, kept] of before) Object.assign(target, kept);
  }
}
