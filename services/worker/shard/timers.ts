import { Wheel } from "./wheel.ts";

/** An item that can have a timer. Only `Timers` sets and reads these two, which have a meaning while it is armed. */
export interface Timed {
  /** The wheel's handle. */
  handle: number;
  /** The number by which the wheel knows the item. */
  place: number;
}

/** Items that wait for their instants, on a wheel of their own. An item has at most one timer at a time. */
export class Timers<Item extends Timed> {
  private readonly wheel: Wheel;
  private readonly armed: (Item | undefined)[] = [];
  private readonly freePlaces: number[] = [];

  constructor(now: number) {
    this.wheel = new Wheel(now);
  }

  /** Sets the timer of an item that has none. `at` is milliseconds since 1970. */
  arm(item: Item, at: number): void {
    item.place = this.freePlaces.pop() ?? this.armed.length;
    item.handle = this.wheel.insert(at, item.place);
    this.armed[item.place] = item;
  }

  /** Takes the item's timer away, if it has one. */
  cancel(item: Item): void {
    if (this.armed[item.place] !== item) return;
    this.wheel.cancel(item.handle);
    this.free(item);
  }

  /** Hands each item whose instant has come to `expire`, without its timer. */
  advance(now: number, expire: (item: Item) => void): void {
    this.wheel.advance(now, (place) => {
      const item = this.armed[place];
      if (item === undefined) return;
      this.free(item);
      expire(item);
    });
  }

  /** The earliest instant at which `advance` has something to do. */
  nextAt(): number {
    return this.wheel.nextAt();
  }

  private free(item: Item): void {
    this.armed[item.place] = undefined;
    this.freePlaces.push(item.place);
  }
}
