import {
  floorTo,
  LEVELS,
  OccupiedSlots,
  SLOTS,
  slotFor,
  slotOf,
  slotsOf,
  WIDE_SLOTS,
  WIDE_SPAN_TICKS,
} from "./wheel-slots.ts";

// Lists are rings in one array of words: a link is the index of the word where the linked member begins. A slot is the
// two words of its ring's head (next, previous); a timer adds its value, its insertion and its due instant.
const NEXT = 0;
const PREVIOUS = 1;
const VALUE = 2;
const INSERTION = 3;
const DUE = 4; // a double, two words
const TIMER_WORDS = 6;

const INSTANT_MAX_MS = 8.64e15;

/** The ring of timers that are due and were not yet handed to `expire`; it follows the slots. */
const RIPE = 2 * SLOTS;
const TIMERS_AT = RIPE + 2;
const NONE = 0;

const CAPACITY_MIN = 16;
const CAPACITY_MAX = 2 ** 24;

// A handle is an insertion's number and, below it, the timer's place in double words: 27 + 26 bits, a safe integer.
const PLACE_RANGE = 2 ** 26;
const INSERTION_RANGE = 2 ** 27;

/**
 * A hierarchical timing wheel: what is due when, for one clock that its caller moves. After Varghese and Lauck, "Hashed
 * and Hierarchical Timing Wheels" (1987), scheme 7, with ticks of 1 ms and a bit per slot to skip empty stretches.
 *
 * Instants are milliseconds since 1970 and may be fractional; they are kept exactly, so that nothing expires before its
 * instant, not even inside its tick. Insert and cancel take constant time; a timer moves down at most once per level.
 * Memory doubles with the number of timers and halves again: new timers take places in the lower half first, and the
 * upper half goes once a quarter is used and the last timer up there is gone.
 */
export class Wheel {
  private words = new Int32Array(TIMERS_AT + CAPACITY_MIN * TIMER_WORDS);
  private instants = new Float64Array(this.words.buffer);
  private readonly occupied = new OccupiedSlots();

  private nowMs: number;
  private tick: number;
  /** The last multiple of WIDE_SPAN_TICKS at or before `tick`. Its distance to near ticks is a small integer. */
  private wideTurnTick: number;
  /** No timer in the slot of the present tick is due before this. */
  private openDueMs = Number.POSITIVE_INFINITY;

  private count = 0;
  private capacity = CAPACITY_MIN;
  private upperHalfAt = TIMERS_AT + (CAPACITY_MIN / 2) * TIMER_WORDS;
  private upperHalfCount = 0;
  private freeInLowerHalf = NONE;
  private freeInUpperHalf = NONE;
  private neverUsedAt = TIMERS_AT;
  private insertion = 0;

  constructor(nowMs: number) {
    refuseImpossible(nowMs);
    this.nowMs = nowMs;
    this.tick = Math.floor(nowMs);
    this.wideTurnTick = floorTo(this.tick, WIDE_SPAN_TICKS);
    for (let head = 0; head < TIMERS_AT; head += 2) {
      this.words[head + NEXT] = head;
      this.words[head + PREVIOUS] = head;
    }
  }

  /** How many timers are in the wheel. Those that the present `advance` has yet to hand to `expire` count. */
  get size(): number {
    return this.count;
  }

  /** The bytes of its typed arrays. */
  get bytes(): number {
    return this.words.byteLength + this.occupied.bytes;
  }

  /**
   * Keeps `value`, a non-negative int32, until `dueMs`; a due instant in the past counts as the present one. Returns a
   * handle for `cancel`, never 0. Throws a RangeError for an instant beyond those of a Date, and for more than
   * 16,777,216 timers.
   */
  insert(dueMs: number, value: number): number {
    const instantMs = Math.max(dueMs, this.nowMs);
    refuseImpossible(instantMs);
    const at = this.allocate();
    this.count++;
    const words = this.words;
    this.insertion = this.insertion + 1 === INSERTION_RANGE ? 1 : this.insertion + 1;
    words[at + VALUE] = value;
    words[at + INSERTION] = this.insertion;
    this.instants[(at + DUE) >> 1] = instantMs;

    const dueTick = Math.floor(instantMs);
    if (dueTick === this.tick && instantMs < this.openDueMs) this.openDueMs = instantMs;
    const head = this.headFor(dueTick);
    this.linkAfter(words[head + PREVIOUS] as number, at);
    this.occupied.mark(head >> 1);
    return this.insertion * PLACE_RANGE + ((at - TIMERS_AT) >> 1);
  }

  /** Takes a timer out. False if it has expired or was canceled, even if its place has been used again. */
  cancel(handle: number): boolean {
    const insertion = Math.floor(handle / PLACE_RANGE);
    const at = TIMERS_AT + 2 * (handle - insertion * PLACE_RANGE);
    // A free place has insertion 0, and a place that was given back with its memory reads as undefined.
    if (insertion === 0 || this.words[at + INSERTION] !== insertion) return false;
    this.unlink(at);
    this.release(at);
    return true;
  }

  /**
   * Moves the clock and hands each value whose due instant has come to `expire`, in order of due tick and of insertion
   * inside a tick. Returns how many. A clock that went backwards changes nothing.
   *
   * `expire` may insert and cancel. A timer that it inserts expires in a later call at the earliest, even if it is due:
   * one call handles the timers that were there when it began, so that a timer which renews itself cannot keep it busy
   * for ever. If `expire` throws, the rest is kept for the next call.
   */
  advance(nowMs: number, expire: (value: number) => void): number {
    refuseImpossible(nowMs);
    if (nowMs < this.nowMs) return 0;
    this.ripen(nowMs);
    let expiredCount = 0;
    for (;;) {
      const at = this.words[RIPE + NEXT] as number;
      if (at === RIPE) return expiredCount;
      const value = this.words[at + VALUE] as number;
      this.unlink(at);
      this.release(at);
      expiredCount++;
      expire(value);
    }
  }

  /**
   * A lower bound of the next instant at which `advance` has anything to do, Infinity if the wheel is empty. Each wait
   * for it ends with an expiry or takes the nearest timer down a level, so that a sleeper wakes a few times for a timer
   * years away. After an `advance` it is later than that call's instant, unless `expire` inserted a due timer.
   */
  nextAt(): number {
    if (this.words[RIPE + NEXT] !== RIPE) return this.nowMs;
    const openHead = this.headFor(this.tick);
    return this.words[openHead + NEXT] === openHead ? this.occupied.nextTick(this.tick) : this.openDueMs;
  }

  /** Moves what is due at `nowMs` from the slots to the ripe ring, and the clock with it. */
  private ripen(nowMs: number): void {
    this.nowMs = nowMs;
    const nowTick = Math.floor(nowMs);
    while (this.tick < nowTick) {
      this.ripenOpenSlot();
      this.moveTo(Math.min(this.occupied.nextTick(this.tick), nowTick));
    }
    if (this.openDueMs <= nowMs) this.ripenPartOfOpenSlot(nowMs);
  }

  private ripenOpenSlot(): void {
    const words = this.words;
    const head = this.headFor(this.tick);
    const first = words[head + NEXT] as number;
    if (first === head) return;
    const last = words[head + PREVIOUS] as number;
    const ripeLast = words[RIPE + PREVIOUS] as number;
    words[ripeLast + NEXT] = first;
    words[first + PREVIOUS] = ripeLast;
    words[last + NEXT] = RIPE;
    words[RIPE + PREVIOUS] = last;
    this.clear(head);
  }

  private ripenPartOfOpenSlot(nowMs: number): void {
    const words = this.words;
    const head = this.headFor(this.tick);
    this.openDueMs = Number.POSITIVE_INFINITY;
    let at = words[head + NEXT] as number;
    while (at !== head) {
      const next = words[at + NEXT] as number;
      const dueMs = this.instants[(at + DUE) >> 1] as number;
      if (dueMs <= nowMs) {
        this.unlink(at);
        this.linkAfter(words[RIPE + PREVIOUS] as number, at);
      } else if (dueMs < this.openDueMs) {
        this.openDueMs = dueMs;
      }
      at = next;
    }
  }

  /** Makes `tick` the present one. No occupied slot may begin between the two. */
  private moveTo(tick: number): void {
    this.tick = tick;
    this.wideTurnTick = floorTo(tick, WIDE_SPAN_TICKS);
    this.openDueMs = tick;
    let spanTicks = WIDE_SLOTS;
    for (let level = 1; level < LEVELS && tick === floorTo(tick, spanTicks); level++) {
      this.cascade(2 * slotOf(level, tick / spanTicks));
      spanTicks *= slotsOf(level);
    }
  }

  /**
   * Deals the timers of a slot out to the levels below, each to the front and the last one first. If timers are due in
   * the same tick, those on a higher level were inserted earlier, when that tick was further away. So this and
   * cascading the lower levels first keep the timers' order.
   */
  private cascade(head: number): void {
    const words = this.words;
    let at = words[head + PREVIOUS] as number;
    this.clear(head);
    while (at !== head) {
      const previous = words[at + PREVIOUS] as number;
      const lowerHead = this.headFor(Math.floor(this.instants[(at + DUE) >> 1] as number));
      this.linkAfter(lowerHead, at);
      this.occupied.mark(lowerHead >> 1);
      at = previous;
    }
  }

  /** The head of the slot where a timer due in `dueTick` belongs now. */
  private headFor(dueTick: number): number {
    return 2 * slotFor(dueTick, this.tick, this.wideTurnTick);
  }

  private linkAfter(previous: number, at: number): void {
    const words = this.words;
    const next = words[previous + NEXT] as number;
    words[at + NEXT] = next;
    words[at + PREVIOUS] = previous;
    words[previous + NEXT] = at;
    words[next + PREVIOUS] = at;
  }

  private unlink(at: number): void {
    const words = this.words;
    const next = words[at + NEXT] as number;
    const previous = words[at + PREVIOUS] as number;
    words[previous + NEXT] = next;
    words[next + PREVIOUS] = previous;
    // Only the head of a ring that is now empty is both neighbours at once.
    if (next === previous) this.clear(next);
  }

  private clear(head: number): void {
    this.words[head + NEXT] = head;
    this.words[head + PREVIOUS] = head;
    this.occupied.clear(head >> 1);
  }

  private allocate(): number {
    let at = this.freeInLowerHalf;
    if (at !== NONE) {
      this.freeInLowerHalf = this.words[at + NEXT] as number;
      return at;
    }
    at = this.freeInUpperHalf;
    if (at !== NONE) {
      this.freeInUpperHalf = this.words[at + NEXT] as number;
    } else {
      if (this.neverUsedAt === this.words.length) this.grow();
      at = this.neverUsedAt;
      this.neverUsedAt += TIMER_WORDS;
    }
    if (at >= this.upperHalfAt) this.upperHalfCount++;
    return at;
  }

  private release(at: number): void {
    this.words[at + INSERTION] = 0;
    if (at < this.upperHalfAt) {
      this.words[at + NEXT] = this.freeInLowerHalf;
      this.freeInLowerHalf = at;
    } else {
      this.words[at + NEXT] = this.freeInUpperHalf;
      this.freeInUpperHalf = at;
      this.upperHalfCount--;
    }
    this.count--;
    if (this.upperHalfCount === 0 && this.capacity > CAPACITY_MIN && this.count <= this.capacity >> 2) {
      this.shrink();
    }
  }

  private grow(): void {
    if (this.capacity === CAPACITY_MAX) throw new RangeError(`a wheel holds at most ${CAPACITY_MAX} timers`);
    const previous = this.words;
    this.resize(this.capacity * 2);
    this.words.set(previous);
    // Every place was taken: nothing is free in the lower half, and nothing is used in the upper one.
    this.upperHalfCount = 0;
  }

  /** Halves the memory as often as the remaining timers allow, and builds the lists of free places in both halves anew. */
  private shrink(): void {
    const previous = this.words;
    let usedEnd = this.upperHalfAt;
    while (usedEnd > TIMERS_AT && previous[usedEnd - TIMER_WORDS + INSERTION] === 0) usedEnd -= TIMER_WORDS;
    let capacity = this.capacity >> 1;
    while (
      capacity > CAPACITY_MIN &&
      this.count <= capacity >> 2 &&
      usedEnd <= TIMERS_AT + (capacity >> 1) * TIMER_WORDS
    ) {
      capacity >>= 1;
    }
    this.resize(capacity);
    this.words.set(previous.subarray(0, this.words.length));

    const words = this.words;
    this.neverUsedAt = words.length;
    this.upperHalfCount = 0;
    this.freeInLowerHalf = NONE;
    this.freeInUpperHalf = NONE;
    for (let at = words.length - TIMER_WORDS; at >= TIMERS_AT; at -= TIMER_WORDS) {
      const isUpper = at >= this.upperHalfAt;
      if (words[at + INSERTION] !== 0) {
        if (isUpper) this.upperHalfCount++;
      } else if (isUpper) {
        words[at + NEXT] = this.freeInUpperHalf;
        this.freeInUpperHalf = at;
      } else {
        words[at + NEXT] = this.freeInLowerHalf;
        this.freeInLowerHalf = at;
      }
    }
  }

  private resize(capacity: number): void {
    this.words = new Int32Array(TIMERS_AT + capacity * TIMER_WORDS);
    this.instants = new Float64Array(this.words.buffer);
    this.capacity = capacity;
    this.upperHalfAt = TIMERS_AT + (capacity / 2) * TIMER_WORDS;
  }
}

function refuseImpossible(instantMs: number): void {
  // Written so that NaN is refused too.
  if (!(Math.abs(instantMs) <= INSTANT_MAX_MS)) throw new RangeError(`not an instant: ${instantMs}`);
}
