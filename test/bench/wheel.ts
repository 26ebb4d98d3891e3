import { Wheel } from "../../services/worker/shard/wheel.ts";
import { formatCount, median, printTable, summarize } from "./harness/measure.ts";

/**
 * What do a million timers over 60 s cost in the wheel, in a binary heap in typed arrays, and in setTimeout: speed,
 * memory, garbage? The wheel and the heap are moved through the horizon millisecond by millisecond. setTimeout has only
 * the real clock, so its timers are due within a second for the expiry, and the figure is CPU time.
 */

const TIMERS = 1_000_000;
const HORIZON_MS = 60_000;
const SHORT_HORIZON_MS = 1_000;
const START_MS = 1_800_000_000_000;
const ROUNDS = 5;

const AFTERWARDS = 1_000;

const STANDING = 100_000;
const CHURN = 5_000_000;
const TIMEOUT_CHURN = 1_000_000;
const CHURN_SAMPLE = 50_000;
/** Half of the standing timers expire and half are canceled when one turn of them takes half a horizon. */
const CHURN_STEP_MS = HORIZON_MS / 2 / STANDING;

const GOAL_PER_S = 1_000_000;
const GOAL_BYTES = 40;
/** The heap grows by blocks and by compiled code. One byte of garbage a cycle would exceed this bound. */
const GARBAGE_BYTES_MAX = 1_000_000;

const NAMES = ["wheel", "binary heap", "setTimeout"] as const;
type Name = (typeof NAMES)[number];
type TimersName = Exclude<Name, "setTimeout">;

interface Speed {
  insertPerS: number;
  cancelPerS: number;
  expirePerS: number;
}

interface Memory {
  heldBytes: number;
  processBytes: number;
  processBytesAfter: number;
  heldBytesAfter: number;
  churnHeapBytes: number;
  churnNs: number;
}

/** The operations of the wheel and of the heap. */
interface Timers {
  insert(dueMs: number, value: number): number;
  cancel(handle: number): boolean;
  advance(nowMs: number, expire: (value: number) => void): number;
  readonly bytes: number;
}

async function main(): Promise<void> {
  const speeds = new Map<Name, Speed[]>(NAMES.map((name) => [name, []]));
  // The rivals take turns, so that a slow phase of the machine affects all of them. The first turn warms up.
  for (let round = 0; round <= ROUNDS; round++) {
    for (const name of NAMES) {
      Bun.gc(true);
      const speed = name === "setTimeout" ? await measureTimeouts() : measureTimers(openTimers(name));
      if (round > 0) speeds.get(name)?.push(speed);
    }
  }
  console.log(
    `${formatCount(TIMERS)} timers over ${HORIZON_MS / 1000} s, median (range) of ${ROUNDS} rounds\n`,
  );
  const headings = ["", "million inserts/s", "million cancels/s", "million expiries/s"];
  const millions = (perS: number) => formatCount(perS / 1e6);
  printTable(
    headings,
    NAMES.map((name) => {
      const samples = speeds.get(name) ?? [];
      return [
        name,
        summarize(pluck(samples, "insertPerS"), millions),
        summarize(pluck(samples, "cancelPerS"), millions),
        summarize(pluck(samples, "expirePerS"), millions),
      ];
    }),
  );

  const memories = new Map<Name, Memory[]>(NAMES.map((name) => [name, []]));
  for (let round = 0; round < ROUNDS; round++) {
    for (const name of NAMES) memories.get(name)?.push(await measureMemoryApart(name));
  }
  console.log(
    `\nMemory, each in a process of its own. Churn: ${formatCount(STANDING)} standing timers, each step one more ` +
      `and one fewer,\n${formatCount(CHURN)} steps (setTimeout: ${formatCount(TIMEOUT_CHURN)}, canceled only)\n`,
  );
  printTable(
    [
      "",
      "bytes/timer held",
      "bytes/timer of the process",
      "the same, all expired",
      "KB held then",
      "churn ns/step",
      "heap growth in churn, KB",
    ],
    NAMES.map((name) => {
      const samples = memories.get(name) ?? [];
      const kilobytes = (bytes: number) => formatCount(bytes / 1024);
      const perTimer = (bytes: number) => formatCount(bytes / TIMERS);
      return [
        name,
        name === "setTimeout" ? "unknown" : summarize(pluck(samples, "heldBytes"), perTimer),
        summarize(pluck(samples, "processBytes"), perTimer),
        summarize(pluck(samples, "processBytesAfter"), perTimer),
        name === "setTimeout" ? "unknown" : summarize(pluck(samples, "heldBytesAfter"), kilobytes),
        summarize(pluck(samples, "churnNs")),
        summarize(pluck(samples, "churnHeapBytes"), kilobytes),
      ];
    }),
  );

  const speed = speeds.get("wheel") ?? [];
  const memory = memories.get("wheel") ?? [];
  console.log(`\nGoals of the wheel (an empty one takes ${formatCount(new Wheel(START_MS).bytes)} bytes)`);
  report("at least 1,000,000 inserts/s", median(pluck(speed, "insertPerS")) >= GOAL_PER_S);
  report("at least 1,000,000 expiries/s", median(pluck(speed, "expirePerS")) >= GOAL_PER_S);
  report("at most 40 bytes a timer", median(pluck(memory, "processBytes")) <= GOAL_BYTES * TIMERS);
  report("no garbage in steady state", median(pluck(memory, "churnHeapBytes")) <= GARBAGE_BYTES_MAX);
}

function measureTimers(timers: Timers): Speed {
  const dueAts = dueInstants();
  const handles = new Float64Array(TIMERS);
  let nowMs = START_MS;
  const insertAll = () => {
    for (let i = 0; i < TIMERS; i++) handles[i] = timers.insert(nowMs + (dueAts[i] as number), i);
  };
  const insertMs = timeMs(insertAll);
  let canceledCount = 0;
  const cancelMs = timeMs(() => {
    for (let i = 0; i < TIMERS; i++) if (timers.cancel(handles[scatter(i)] as number)) canceledCount++;
  });
  insertAll();
  let expiredCount = 0;
  let valueSum = 0;
  const expireMs = timeMs(() => {
    const endMs = nowMs + HORIZON_MS;
    while (nowMs < endMs) {
      expiredCount += timers.advance(++nowMs, (value) => {
        valueSum += value;
      });
    }
  });
  if (canceledCount !== TIMERS || expiredCount !== TIMERS || valueSum !== (TIMERS * (TIMERS - 1)) / 2) {
    throw new Error(`${canceledCount} canceled, ${expiredCount} expired of ${TIMERS}`);
  }
  return speedOf(insertMs, cancelMs, expireMs);
}

async function measureTimeouts(): Promise<Speed> {
  const dueAts = dueInstants();
  const handles: NodeJS.Timeout[] = new Array(TIMERS);
  const insertMs = timeMs(() => {
    for (let i = 0; i < TIMERS; i++) handles[i] = setTimeout(() => {}, dueAts[i]);
  });
  const cancelMs = timeMs(() => {
    for (let i = 0; i < TIMERS; i++) clearTimeout(handles[scatter(i)]);
  });
  handles.length = 0;
  const before = { ms: 0 };
  await new Promise<void>((resolve) => {
    let expiredCount = 0;
    const expire = () => {
      if (++expiredCount === TIMERS) resolve();
    };
    for (let i = 0; i < TIMERS; i++)
      setTimeout(expire, ((dueAts[i] as number) * SHORT_HORIZON_MS) / HORIZON_MS);
    before.ms = processorMs();
  });
  return speedOf(insertMs, cancelMs, processorMs() - before.ms);
}

function measureMemory(name: Name): Promise<Memory> {
  const dueAts = dueInstants();
  return name === "setTimeout" ? measureTimeoutMemory(dueAts) : measureTimersMemory(name, dueAts);
}

async function measureTimersMemory(name: TimersName, dueAts: Float64Array): Promise<Memory> {
  const timers = openTimers(name);
  // The handles that a caller keeps are the caller's memory and are not counted.
  const handles = new Float64Array(STANDING).fill(-1);
  const baseBytes = residentBytes();
  for (let i = 0; i < TIMERS; i++) timers.insert(START_MS + (dueAts[i] as number), i);
  const processBytes = residentBytes() - baseBytes;
  const heldBytes = timers.bytes;
  let nowMs = START_MS + HORIZON_MS;
  const drop = () => {};
  timers.advance(nowMs, drop);
  // Code compiled in the burst keeps its array alive as a constant, until that code runs again and meets another array.
  for (let i = 0; i < AFTERWARDS; i++) {
    timers.insert(nowMs, i);
    timers.advance(nowMs, drop);
  }
  const processBytesAfter = residentBytes() - baseBytes;
  const heldBytesAfter = timers.bytes;

  const churn = churnHeap(CHURN, (step) => {
    const place = step % STANDING;
    timers.cancel(handles[place] as number);
    handles[place] = timers.insert(nowMs + (dueAts[step % TIMERS] as number), place);
    nowMs += CHURN_STEP_MS;
    timers.advance(nowMs, drop);
  });
  return { heldBytes, processBytes, processBytesAfter, heldBytesAfter, ...churn };
}

async function measureTimeoutMemory(dueAts: Float64Array): Promise<Memory> {
  const handles: NodeJS.Timeout[] = new Array(STANDING);
  const baseBytes = residentBytes();
  let left = TIMERS;
  const { promise, resolve } = Promise.withResolvers<void>();
  const expire = () => {
    if (--left === 0) resolve();
  };
  for (let i = 0; i < TIMERS; i++)
    setTimeout(expire, ((dueAts[i] as number) * SHORT_HORIZON_MS) / HORIZON_MS);
  const processBytes = residentBytes() - baseBytes;
  await promise;
  const processBytesAfter = residentBytes() - baseBytes;

  const churn = churnHeap(TIMEOUT_CHURN, (step) => {
    const place = step % STANDING;
    clearTimeout(handles[place]);
    handles[place] = setTimeout(expire, HORIZON_MS + (dueAts[step % TIMERS] as number));
  });
  for (const handle of handles) clearTimeout(handle);
  return {
    heldBytes: Number.NaN,
    processBytes,
    processBytesAfter,
    heldBytesAfter: Number.NaN,
    ...churn,
  };
}

/**
 * Measures the rise of the heap above its size once the standing timers exist and the code is compiled. Bun collects
 * only after some 8 MB of garbage, so a smaller rise is all the garbage there was.
 */
function churnHeap(count: number, step: (step: number) => void): { churnHeapBytes: number; churnNs: number } {
  for (let i = 0; i < 5 * STANDING; i++) step(i);
  Bun.gc(true);
  const baseBytes = process.memoryUsage().heapTotal;
  let peakBytes = baseBytes;
  const churnMs = timeMs(() => {
    for (let i = 0; i < count; i++) {
      step(i);
      if (i % CHURN_SAMPLE === 0) peakBytes = Math.max(peakBytes, process.memoryUsage().heapTotal);
    }
  });
  return { churnHeapBytes: peakBytes - baseBytes, churnNs: (churnMs * 1e6) / count };
}

async function measureMemoryApart(name: Name): Promise<Memory> {
  const child = Bun.spawn([process.execPath, import.meta.path, name], { stdout: "pipe", stderr: "inherit" });
  const output = await child.stdout.text();
  if ((await child.exited) !== 0) throw new Error(`the process that measures ${name} failed`);
  return JSON.parse(output, (_, figure) => figure ?? Number.NaN) as Memory;
}

function openTimers(name: TimersName): Timers {
  return name === "wheel" ? new Wheel(START_MS) : new BinaryHeap();
}

/**
 * The rival: a binary heap by due instant. Handles are places in a table, so that a cancel finds its timer. Unlike the
 * wheel it does not check stale handles, keeps no order inside a millisecond and never shrinks.
 */
class BinaryHeap implements Timers {
  private dueAts = new Float64Array(16);
  private handles = new Int32Array(16);
  private places = new Int32Array(16).fill(-1);
  private values = new Int32Array(16);
  private free = new Int32Array(16).map((_, i) => 15 - i);
  private freeCount = 16;
  private count = 0;

  get bytes(): number {
    return this.dueAts.byteLength + 4 * this.handles.byteLength;
  }

  insert(dueMs: number, value: number): number {
    if (this.freeCount === 0) this.grow();
    const handle = this.free[--this.freeCount] as number;
    this.values[handle] = value;
    this.siftUp(this.count++, dueMs, handle);
    return handle;
  }

  cancel(handle: number): boolean {
    const place = this.places[handle] ?? -1;
    if (place === -1) return false;
    this.remove(place);
    return true;
  }

  advance(nowMs: number, expire: (value: number) => void): number {
    let expiredCount = 0;
    while (this.count > 0 && (this.dueAts[0] as number) <= nowMs) {
      const value = this.values[this.handles[0] as number] as number;
      this.remove(0);
      expiredCount++;
      expire(value);
    }
    return expiredCount;
  }

  private remove(place: number): void {
    const handle = this.handles[place] as number;
    this.places[handle] = -1;
    this.free[this.freeCount++] = handle;
    const last = --this.count;
    if (place === last) return;
    const dueMs = this.dueAts[last] as number;
    const moved = this.handles[last] as number;
    if (place > 0 && dueMs < (this.dueAts[(place - 1) >> 1] as number)) this.siftUp(place, dueMs, moved);
    else this.siftDown(place, dueMs, moved);
  }

  private siftUp(from: number, dueMs: number, handle: number): void {
    let place = from;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      const parentDueMs = this.dueAts[parent] as number;
      if (parentDueMs <= dueMs) break;
      this.put(place, parentDueMs, this.handles[parent] as number);
      place = parent;
    }
    this.put(place, dueMs, handle);
  }

  private siftDown(from: number, dueMs: number, handle: number): void {
    let place = from;
    for (;;) {
      let child = 2 * place + 1;
      if (child >= this.count) break;
      if (child + 1 < this.count && (this.dueAts[child + 1] as number) < (this.dueAts[child] as number))
        child++;
      const childDueMs = this.dueAts[child] as number;
      if (dueMs <= childDueMs) break;
      this.put(place, childDueMs, this.handles[child] as number);
      place = child;
    }
    this.put(place, dueMs, handle);
  }

  private put(place: number, dueMs: number, handle: number): void {
    this.dueAts[place] = dueMs;
    this.handles[place] = handle;
    this.places[handle] = place;
  }

  private grow(): void {
    const capacity = this.handles.length;
    const doubled = (array: Int32Array<ArrayBuffer>) => {
      const larger = new Int32Array(2 * capacity);
      larger.set(array);
      return larger;
    };
    const dueAts = new Float64Array(2 * capacity);
    dueAts.set(this.dueAts);
    this.dueAts = dueAts;
    this.handles = doubled(this.handles);
    this.places = doubled(this.places).fill(-1, capacity);
    this.values = doubled(this.values);
    this.free = doubled(this.free);
    for (let handle = 2 * capacity - 1; handle >= capacity; handle--) this.free[this.freeCount++] = handle;
  }
}

/** Milliseconds ahead, the same in every process and round (Numerical Recipes' linear congruential generator). */
function dueInstants(): Float64Array {
  const dueAts = new Float64Array(TIMERS);
  let state = 12_345;
  for (let i = 0; i < TIMERS; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    dueAts[i] = (state / 2 ** 32) * HORIZON_MS;
  }
  return dueAts;
}

/** A permutation, so that cancels come in another order than the inserts. */
function scatter(i: number): number {
  return (i * 7_919) % TIMERS;
}

function residentBytes(): number {
  Bun.gc(true);
  return process.memoryUsage().rss;
}

function processorMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1_000;
}

function timeMs(act: () => void): number {
  const startMs = performance.now();
  act();
  return performance.now() - startMs;
}

function speedOf(insertMs: number, cancelMs: number, expireMs: number): Speed {
  const perS = (ms: number) => (TIMERS * 1_000) / ms;
  return { insertPerS: perS(insertMs), cancelPerS: perS(cancelMs), expirePerS: perS(expireMs) };
}

function pluck<Key extends string>(samples: readonly Record<Key, number>[], key: Key): number[] {
  return samples.map((sample) => sample[key]);
}

function report(goal: string, isMet: boolean): void {
  console.log(`${isMet ? "met   " : "missed"}  ${goal}`);
}

const measured = NAMES.find((name) => name === process.argv[2]);
if (measured === undefined) await main();
else console.log(JSON.stringify(await measureMemory(measured)));
