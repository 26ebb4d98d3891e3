import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { beginLimit, endLimit, type TimeLimit } from "./time-limit.ts";

/** The time that a request may wait for the store. It begins to run at once, and must be stopped in the end. */
export class Deadline implements TimeLimit {
  endsAt: number;
  isPassed = false;
  private leftMs = 0;
  private giveUp: (error: StoreUnavailable) => void = () => undefined;

  constructor(private readonly limitMs: number) {
    this.endsAt = performance.now() + limitMs;
    beginLimit(this);
  }

  /** The result of the work, or StoreUnavailable once the time is over. The work goes on then. */
  bound<Result>(work: Promise<Result>): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.giveUp = reject;
      work.then(resolve, reject);
    });
  }

  standStill(): void {
    this.leftMs = this.endsAt - performance.now();
    this.endsAt = Number.POSITIVE_INFINITY;
  }

  goOn(): void {
    this.endsAt = performance.now() + this.leftMs;
  }

  stop(): void {
    endLimit(this);
  }

  pass(): void {
    this.stop();
    this.isPassed = true;
    this.giveUp(new StoreUnavailable(`the store did not answer within ${this.limitMs} ms`));
  }
}
