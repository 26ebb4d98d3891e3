/**
 * Credits with which a lane finds out whether permits are free when no hint will say so. The number doubles each time
 * that all of them were granted.
 */
const PROBE_CREDITS_MIN = 32;
const PROBE_CREDITS_MAX = 4_096;

/**
 * How many attempts of a lane may be sent.
 *
 * Credits begin without bound. A refusal for want of a permit takes them all away. The refusal is noted in the
 * database, which tells the shard of the next permits that come back; the lane then has a credit for each of them and
 * one more. The refusal of the extra attempt is noted in turn. A hint may overtake the refusal that it answers, so both
 * carry the number of permits that had ever come back. If all sent attempts were granted, no refusal is noted and no
 * hint will come, so the lane probes. Once nothing is ready, credits are without bound again.
 */
export class Credits {
  private left = Number.POSITIVE_INFINITY;
  /** The number of the project's returned permits for which credits were given or refused. */
  private returnedPermits = 0;
  private hasRefusalNoted = false;
  private probeCredits = PROBE_CREDITS_MIN;

  get areLeft(): boolean {
    return this.left > 0;
  }

  spend(): void {
    this.left--;
  }

  unbind(): void {
    this.left = Number.POSITIVE_INFINITY;
  }

  /** A claim was refused for want of a permit. `returned` is the number of permits that had ever come back by then. */
  refuse(returned: number): void {
    const since = this.returnedPermits - returned;
    if (since > 0) {
      this.left = Math.min(this.left, since + 1);
    } else {
      this.left = 0;
      this.hasRefusalNoted = true;
      this.probeCredits = PROBE_CREDITS_MIN;
      this.returnedPermits = returned;
    }
  }

  /** Permits of the project have come back, `returned` of them ever. */
  give(returned: number): void {
    if (returned <= this.returnedPermits) return;
    this.hasRefusalNoted = false;
    this.left += returned - this.returnedPermits + 1;
    this.returnedPermits = returned;
  }

  /** Probes if no refusal is noted and no answer is to come (`isAwaited`), or if a hint may have been lost (`isOverdue`). */
  probe({ isOverdue, isAwaited }: { isOverdue: boolean; isAwaited: boolean }): void {
    if (this.areLeft || (!isOverdue && (this.hasRefusalNoted || isAwaited))) return;
    this.left = this.probeCredits;
    this.probeCredits = Math.min(2 * this.probeCredits, PROBE_CREDITS_MAX);
  }
}
