import type { ProjectNo } from "../../shared/domain/scope.ts";

/** How much one node takes on at once. */
export interface NodeLimits {
  /** Attempts claimed or being claimed. */
  attemptsMax: number;
  /** Requests to one host, over all projects: no less than the largest plan may have in flight. */
  perHostMax: number;
}

export const NODE_LIMITS: NodeLimits = { attemptsMax: 4_000, perHostMax: 2_000 };

/** Over this part of what a node takes on, projects have equal shares of it. */
const SHARED_FROM = 0.8;

/** The jobs of which a node has a claim or an attempt in progress. */
export class JobsInFlight {
  private readonly jobs = new Set<string>();
  private readonly perProject = new Map<ProjectNo, number>();

  constructor(private readonly limits: NodeLimits) {}

  get size(): number {
    return this.jobs.size;
  }

  get room(): number {
    return this.limits.attemptsMax - this.jobs.size;
  }

  has(jobId: string): boolean {
    return this.jobs.has(jobId);
  }

  add(jobId: string, projectNo: ProjectNo): void {
    this.jobs.add(jobId);
    this.perProject.set(projectNo, (this.perProject.get(projectNo) ?? 0) + 1);
  }

  delete(jobId: string, projectNo: ProjectNo): void {
    if (!this.jobs.delete(jobId)) return;
    const left = (this.perProject.get(projectNo) ?? 0) - 1;
    if (left > 0) this.perProject.set(projectNo, left);
    else this.perProject.delete(projectNo);
  }

  /**
   * Whether the node is so full that projects have equal shares, and this one has its share already. What is still free
   * is shared by the rule of Choudhury and Hahne ("Dynamic Queue Length Thresholds for Shared-Memory Packet Switches",
   * 1998): nobody may have more than is left. So whatever stalls, and in however many projects, some room is left for
   * those that come.
   */
  isShareTaken(projectNo: ProjectNo): boolean {
    const { attemptsMax } = this.limits;
    if (this.jobs.size < SHARED_FROM * attemptsMax) return false;
    const taken = this.perProject.get(projectNo) ?? 0;
    const sharers = this.perProject.size + (taken === 0 ? 1 : 0);
    return taken >= attemptsMax / sharers || taken >= this.room;
  }
}

/**
 * The requests in flight to each host, and the claims that may become some. Where an attempt leads is known only once it
 * is claimed, and then it has to be sent. So a claim is made blindly while even the fullest host could take all that
 * are being claimed blindly, which costs nothing; else its host is looked up first, and must have room for it and for
 * those. The limit is exact, and no claimed attempt waits.
 */
export class RequestsPerHost {
  private readonly counts = new Map<string, number>();
  /** At each place, how many hosts have so many requests in flight. It tells the fullest without a walk. */
  private readonly hostsWith: number[] = [];
  private fullestCount = 0;
  private blindCount = 0;

  constructor(private readonly limits: NodeLimits) {}

  mayClaimBlindly(): boolean {
    return this.fullestCount + this.blindCount < this.limits.perHostMax;
  }

  mayClaimFor(host: string): boolean {
    return (this.counts.get(host) ?? 0) + this.blindCount < this.limits.perHostMax;
  }

  /** A request to the host, or a claim that may become one; null for a blind claim. */
  add(host: string | null): void {
    if (host === null) this.blindCount++;
    else this.move(host, 1);
  }

  delete(host: string | null): void {
    if (host === null) this.blindCount--;
    else this.move(host, -1);
  }

  private move(host: string, step: 1 | -1): void {
    const before = this.counts.get(host) ?? 0;
    const after = before + step;
    if (after === 0) this.counts.delete(host);
    else this.counts.set(host, after);
    this.hostsWith[before] = (this.hostsWith[before] ?? 0) - 1;
    this.hostsWith[after] = (this.hostsWith[after] ?? 0) + 1;
    if (after > this.fullestCount) this.fullestCount = after;
    // Its last host has just gone one down.
    else if (before === this.fullestCount && this.hostsWith[before] === 0) this.fullestCount = after;
  }
}
