// The two lowest levels are wide, so that a timer of a 65 s horizon cascades at most once. The narrow levels above
// reach over every instant a Date can hold: there is no overflow list and no timer too far away.
const WIDE_LEVELS = 2;
const NARROW_LEVELS = 8;
export const LEVELS = WIDE_LEVELS + NARROW_LEVELS;
export const WIDE_SLOTS = 256;
const NARROW_SLOTS = 32;
export const SLOTS = WIDE_LEVELS * WIDE_SLOTS + NARROW_LEVELS * NARROW_SLOTS;
export const WIDE_SPAN_TICKS = WIDE_SLOTS * WIDE_SLOTS;

export function slotsOf(level: number): number {
  return level < WIDE_LEVELS ? WIDE_SLOTS : NARROW_SLOTS;
}

/** The slot of a level for its `turn`: the number of its spans since 1970, too large for bit operations. */
export function slotOf(level: number, turn: number): number {
  if (level < WIDE_LEVELS) return level * WIDE_SLOTS + (turn - floorTo(turn, WIDE_SLOTS));
  const first = WIDE_LEVELS * WIDE_SLOTS + (level - WIDE_LEVELS) * NARROW_SLOTS;
  return first + (turn - floorTo(turn, NARROW_SLOTS));
}

/**
 * The slot where a timer due in `dueTick`, the present `tick` or a later one, belongs now. `wideTurnTick` is the last
 * multiple of WIDE_SPAN_TICKS at or before `tick`.
 */
export function slotFor(dueTick: number, tick: number, wideTurnTick: number): number {
  const aheadTicks = dueTick - tick;
  if (aheadTicks < WIDE_SLOTS) return (dueTick - wideTurnTick) & (WIDE_SLOTS - 1);
  if (aheadTicks < WIDE_SPAN_TICKS) {
    return WIDE_SLOTS + (((dueTick - wideTurnTick) >> 8) & (WIDE_SLOTS - 1));
  }
  let level = WIDE_LEVELS;
  let spanTicks = WIDE_SPAN_TICKS;
  while (aheadTicks >= spanTicks * NARROW_SLOTS) {
    level++;
    spanTicks *= NARROW_SLOTS;
  }
  return slotOf(level, Math.floor(dueTick / spanTicks));
}

export function floorTo(tick: number, spanTicks: number): number {
  return Math.floor(tick / spanTicks) * spanTicks;
}

/** A bit for each slot of a wheel, so that empty slots are stepped over. */
export class OccupiedSlots {
  private readonly bits = new Int32Array((SLOTS >> 5) + 1);

  get bytes(): number {
    return this.bits.byteLength;
  }

  mark(slot: number): void {
    this.bits[slot >> 5] = (this.bits[slot >> 5] as number) | (1 << slot);
  }

  clear(slot: number): void {
    this.bits[slot >> 5] = (this.bits[slot >> 5] as number) & ~(1 << slot);
  }

  /** The first tick after this one at which an occupied slot begins, Infinity if none does. */
  nextTick(tick: number): number {
    let soonestTick = Number.POSITIVE_INFINITY;
    let spanTicks = 1;
    for (let level = 0; level < LEVELS; level++) {
      const turn = Math.floor(tick / spanTicks);
      const distance = this.distanceToNext(level, turn);
      if (distance > 0) soonestTick = Math.min(soonestTick, (turn + distance) * spanTicks);
      spanTicks *= slotsOf(level);
      // The slots above begin at multiples of their span: none of them comes before the next such multiple.
      if (soonestTick <= floorTo(tick, spanTicks) + spanTicks) return soonestTick;
    }
    return soonestTick;
  }

  /** How many slots after that of `turn` the level's next occupied one is: 1 to a whole revolution, 0 if none is. */
  private distanceToNext(level: number, turn: number): number {
    const wordCount = slotsOf(level) >> 5;
    const firstWord = slotOf(level, 0) >> 5;
    const slot = slotOf(level, turn);
    const word = (slot >> 5) - firstWord;
    const bit = slot & 31;
    const later = (this.bits[firstWord + word] as number) & (-2 << bit);
    if (later !== 0) return lowestBit(later) - bit;
    for (let step = 1; step <= wordCount; step++) {
      const bits = this.bits[firstWord + ((word + step) & (wordCount - 1))] as number;
      if (bits !== 0) return step * 32 + lowestBit(bits) - bit;
    }
    return 0;
  }
}

function lowestBit(bits: number): number {
  return 31 - Math.clz32(bits & -bits);
}
