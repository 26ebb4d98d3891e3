import type { Answer } from "../../shared/bus/messages.ts";
import { HOST_REQUESTS_MAX, type HostLimit } from "../../shared/domain/host-limit.ts";
import type { ProjectNo } from "../../shared/domain/scope.ts";

/** How much one node takes on at once. */
export interface NodeLimits {
  /** How many attempts it may have claimed, or be claiming, at once. */
  attemptsMax: number;
  /** How many requests it may have in flight to one host, over all projects. Operators lower it for some hosts. */
  perHostMax: number;
}

export const NODE_LIMITS: NodeLimits = { attemptsMax: 4_000, perHostMax: HOST_REQUESTS_MAX };

/** Once so much of a node is taken, projects have equal shares of it. */
const SHARED_FROM = 0.8;

/** An attempt that a node is claiming, sending or settling. */
export interface AttemptInFlight {
  attempt: number;
  /** The answer to its claim, once there is one. */
  answer: Promise<Answer | null>;
}

/** The jobs and deliveries, by their ids, of which a node has an attempt in flight. */
export class InFlight {
  private readonly attempts = new Map<string, AttemptInFlight>();
  private readonly perProject = new Map<ProjectNo, number>();

  constructor(private readonly limits: NodeLimits) {}

  get size(): number {
    return this.attempts.size;
  }

  get room(): number {
    return this.limits.attemptsMax - this.attempts.size;
  }

  find(id: string): AttemptInFlight | undefined {
    return this.attempts.get(id);
  }

  add(id: string, projectNo: ProjectNo, attempt: AttemptInFlight): void {
    this.attempts.set(id, attempt);
    this.perProject.set(projectNo, (this.perProject.get(projectNo) ?? 0) + 1);
  }

  delete(id: string, projectNo: ProjectNo): void {
    if (!this.attempts.delete(id)) return;
    const left = (this.perProject.get(projectNo) ?? 0) - 1;
    if (left > 0) this.perProject.set(projectNo, left);
    else this.perProject.delete(projectNo);
  }

  /** Whether the node is so full that projects have equal shares of it. */
  get isShared(): boolean {
    return this.attempts.size >= SHARED_FROM * this.limits.attemptsMax;
  }

  /**
   * Whether the node is so full that projects have equal shares, and this project has its share already. Free room is
   * shared by the rule of Choudhury and Hahne ("Dynamic Queue Length Thresholds for Shared-Memory Packet Switches",
   * 1998): no project may have more than is left. So some room is left for projects that come, however many others
   * stall.
   */
  isShareTaken(projectNo: ProjectNo): boolean {
    const { attemptsMax } = this.limits;
    if (!this.isShared) return false;
    const taken = this.perProject.get(projectNo) ?? 0;
    const sharers = this.perProject.size + (taken === 0 ? 1 : 0);
    return taken >= attemptsMax / sharers || taken >= this.room;
  }
}

/**
 * The requests in flight to each host, and the claims that may become requests. The host of an attempt is known only
 * once the attempt is claimed, and then it has to be sent. A claim is made blindly, which costs nothing, while every
 * host could take all blind claims under way. Otherwise its host is looked up first and must have room for it and for
 * the blind ones. So the limits are exact, and no claimed attempt waits. While claims alone keep a further one from being
 * made blindly, it waits for the end of one instead.
 */
export class RequestsPerHost {
  private readonly counts = new Map<string, number>();
  /**
   * At place n, the number of hosts with n requests in flight. It tells how full the fullest host is without a walk
   * over all of them.
   */
  private readonly hostsWith: number[] = [];
  private fullestCount = 0;
  private blindCount = 0;
  /** How many of these are settlements that may start another attempt. They last longer than a claim. */
  private settlingCount = 0;
  /** The limits that operators have lowered. They are few, so all are walked whenever one of them may have changed. */
  private lowered = new Map<string, number>();
  /** The least room at any host with a lowered limit. */
  private leastRoom = Number.POSITIVE_INFINITY;
  private blindEnd: PromiseWithResolvers<void> | null = null;
  /** The claims that wait for the end of others, in their order. */
  private readonly waiting: (() => void)[] = [];
  private isWaking = false;

  constructor(private readonly limits: NodeLimits) {}

  /** Resolves after the turn of the event loop in which the next blind claim ends. Many claims can end in one turn. */
  nextBlindEnd(): Promise<void> {
    this.blindEnd ??= Promise.withResolvers();
    return this.blindEnd.promise;
  }

  /** Replaces the lowered limits. Requests in flight beyond them run to their end. */
  lower(hosts: readonly HostLimit[]): void {
    this.lowered = new Map(hosts.map(({ host, requests }) => [host, requests]));
    this.findLeastRoom();
  }

  mayClaimBlindly(): boolean {
    return this.blindCount < this.blindMax;
  }

  /**
   * Resolves when a claim may be made blindly, or its host should be looked up; null if that is so now. It waits while so many claims
   * are under way that their ends will leave room for it. A look at its host would only cost a statement more.
   */
  turnOfClaim(): Promise<void> | null {
    return this.waiting.length > 0 || this.isCrowded ? this.waitForTurn() : null;
  }

  private async waitForTurn(): Promise<void> {
    do {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.waiting.push(resolve);
      await promise;
    } while (this.isCrowded);
  }

  /** Whether a further claim cannot be made blindly, and more than half of a host's places would be taken by claims alone. */
  private get isCrowded(): boolean {
    return !this.mayClaimBlindly() && this.hasManyClaims;
  }

  private get hasManyClaims(): boolean {
    return 2 * (this.blindCount - this.settlingCount) > this.limits.perHostMax;
  }

  /** How many claims may be under way blindly. */
  private get blindMax(): number {
    return Math.min(this.limits.perHostMax - this.fullestCount, this.leastRoom);
  }

  /**
   * Whether a settlement may count as a blind claim. It never takes the last place of a host: attempts that are parked there may wait
   * for that. It lasts longer than a claim, so half of the room at hosts with a lowered limit is left to claims.
   */
  mayTakeBlindly(): boolean {
    const taken = this.blindCount + 1;
    return taken < this.limits.perHostMax - this.fullestCount && 2 * taken <= this.leastRoom;
  }

  mayClaimFor(host: string): boolean {
    return this.claimsLeftFor(host) > 0;
  }

  /** How many more claims may be made for the host now. Every blind claim counts, since it may lead there. */
  claimsLeftFor(host: string): number {
    return this.roomOf(host) - this.blindCount;
  }

  /** How many more requests the host could take, if no blind claim leads there. */
  roomOf(host: string): number {
    const { perHostMax } = this.limits;
    return Math.min(this.lowered.get(host) ?? perHostMax, perHostMax) - (this.counts.get(host) ?? 0);
  }

  /** A request to the host, or a claim that may become one; null for a blind claim. */
  add(host: string | null): void {
    if (host === null) this.blindCount++;
    else this.move(host, 1);
  }

  delete(host: string | null): void {
    if (host === null) this.endBlindClaim();
    else this.move(host, -1);
  }

  /** A settlement that may start another attempt counts as a blind claim. */
  addSettlement(): void {
    this.settlingCount++;
    this.add(null);
  }

  deleteSettlement(): void {
    this.settlingCount--;
    this.delete(null);
  }

  private endBlindClaim(): void {
    this.blindCount--;
    if (this.blindEnd !== null) {
      setImmediate(this.blindEnd.resolve);
      this.blindEnd = null;
    }
    if (this.waiting.length === 0 || this.isWaking) return;
    this.isWaking = true;
    setImmediate(() => {
      this.isWaking = false;
      // While many claims are under way, their ends wake the others. Few might end before all are woken, so then none waits on.
      const count = this.hasManyClaims ? Math.max(0, this.blindMax - this.blindCount) : this.waiting.length;
      for (const wake of this.waiting.splice(0, count)) wake();
    });
  }

  private findLeastRoom(): void {
    this.leastRoom = Number.POSITIVE_INFINITY;
    for (const host of this.lowered.keys()) this.leastRoom = Math.min(this.leastRoom, this.roomOf(host));
  }

  private move(host: string, step: 1 | -1): void {
    const before = this.counts.get(host) ?? 0;
    const after = before + step;
    if (after === 0) this.counts.delete(host);
    else this.counts.set(host, after);
    this.hostsWith[before] = (this.hostsWith[before] ?? 0) - 1;
    this.hostsWith[after] = (this.hostsWith[after] ?? 0) + 1;
    if (after > this.fullestCount) this.fullestCount = after;
    // The last host with the most requests has just lost one.
    else if (before === this.fullestCount && this.hostsWith[before] === 0) this.fullestCount = after;
    if (this.lowered.has(host)) this.findLeastRoom();
  }
}
