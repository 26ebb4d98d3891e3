import { RUN_AT_PAST_SECONDS_MAX } from "../../../shared/domain/job.ts";
import type { Random } from "../../simulation/cell/random.ts";
import type { HistoryEvent } from "../../support/history/history.ts";
import { type Answered, type Api, REFUSED_FOR_ITS_RATE } from "./api.ts";
import type { Recording } from "./recording.ts";
import { type Habit, payloadOf, type Targets } from "./targets.ts";

/** A project as the load knows it. */
export interface LoadedProject {
  no: number;
  api: Api;
  /** Its share of all jobs, relative to the weights of the other projects. */
  weight: number;
  schedules: string[];
  endpoints: string[];
  /** The flows that some of its jobs name. */
  flows: readonly LoadedFlow[];
  /** Whether most of its jobs go to the host that is away for a while, and are parked there. */
  parksAtHosts: boolean;
}

/** A flow key with its limits. Jobs carry the limits, unless the key is pinned. */
export interface LoadedFlow {
  key: string;
  hold: "attempt" | "job";
  concurrency: number | null;
  rate: { count: number; perSeconds: number } | null;
  isPinned?: boolean;
}

interface MadeJob {
  id: string;
  run_at: string;
}
interface Refusal {
  error?: { code: string };
}
/** The jobs of the answer to a creation, alone or in a batch. */
const jobsOf = (body: MadeJob & { data?: MadeJob[] }): readonly MadeJob[] => body.data ?? [body];

const HABITS: readonly Habit[] = [
  ...(["good", "good", "good", "good", "good", "flaky", "flaky", "slow", "slow", "busy"] as const),
  ...(["closing", "closing", "bad", "final", "silent"] as const),
];
const BATCH_JOBS = 5;
const LATER_MS_MAX = 12_000;
const MUCH_LATER_MS = 120_000;
/** The part of a project's jobs that have a flow key if it has any, and the part that go to the host that is away. */
const FLOW_PART = 0.7;
const AWAY_PART = 0.7;
const AWAY_HABITS: readonly Habit[] = ["good", "good", "flaky", "slow"];
const MORE_PLACES = 3;
/** How long a schedule or a flow key is paused, or an endpoint disabled. */
const AWHILE_MS = { least: 500, end: 5_000 };
const REMEMBERED_JOBS = 400;
const MADE = 201;

/**
 * Clients that act at a steady pace: they create jobs (with a key or without, alone or in batches, twice at once),
 * cancel, retry by hand, pause schedules and disable endpoints. Requests with a key, and others that may be repeated,
 * are repeated until they are answered. So at the end every outcome is known except those of requests without a key.
 */
export class Load {
  private readonly pending = new Set<Promise<void>>();
  private readonly jobs: { project: LoadedProject; id: string }[] = [];
  private requestCount = 0;
  /** The jobs that were asked for and accepted. */
  askedCount = 0;
  acceptedCount = 0;
  private readonly resources = new Set<string>();

  constructor(
    private readonly projects: readonly LoadedProject[],
    private readonly targets: Targets,
    private readonly recording: Recording,
    private readonly random: Random,
  ) {}

  /** Begins one more operation every so many milliseconds, until it is stopped. */
  begin(everyMs: number): { stop(): void } {
    const timer = setInterval(() => this.start(this.operate()), everyMs);
    return { stop: () => clearInterval(timer) };
  }

  /** Waits until all operations that were begun are answered. */
  async untilAnswered(): Promise<void> {
    while (this.pending.size > 0) await Promise.all(this.pending);
  }

  /** Creates one more job, with a key. The request is repeated until it is answered. */
  create(project: LoadedProject, habit: Habit, delayMs: number): void {
    this.start(this.createJobs(project, { count: 1, isKeyed: true, times: 1, habit, delayMs }));
  }

  /** Creates a job and cancels it before it is due. No other job may be created meanwhile. */
  async createAndCancel(project: LoadedProject): Promise<void> {
    const wish = { count: 1, isKeyed: true, times: 1, habit: "good", delayMs: MUCH_LATER_MS } as const;
    await this.createJobs(project, wish);
    const job = this.jobs.at(-1);
    if (job?.project === project) await this.cancelJob(project, job.id);
  }

  private start(operation: Promise<void>): void {
    const begun: Promise<void> = operation.finally(() => this.pending.delete(begun));
    this.pending.add(begun);
  }

  private async operate(): Promise<void> {
    const { random } = this;
    const project = this.pickProject();
    const part = random.next();
    const isMortal = project.parksAtHosts && random.chance(AWAY_PART);
    const flow = random.chance(FLOW_PART) ? project.flows[random.below(project.flows.length)] : undefined;
    const delayMs = random.chance(0.3) ? random.below(LATER_MS_MAX) : 0;
    const some = { habit: random.pick(isMortal ? AWAY_HABITS : HABITS), delayMs, isMortal, flow };
    if (part < 0.36) return this.createJobs(project, { ...some, count: 1, isKeyed: false, times: 1 });
    if (part < 0.7) return this.createJobs(project, { ...some, count: 1, isKeyed: true, times: 1 });
    if (part < 0.75) return this.createJobs(project, { ...some, count: 1, isKeyed: true, times: 2 });
    if (part < 0.79) return this.createJobs(project, { ...some, count: BATCH_JOBS, isKeyed: true, times: 1 });
    if (part < 0.88) return this.cancel();
    if (part < 0.96) return this.retry(project);
    if (part < 0.975) return this.changeFlowForAWhile(project);
    if (part < 0.99) return this.pauseForAWhile(project);
    return this.disableForAWhile(project);
  }

  private pickProject(): LoadedProject {
    const whole = this.projects.reduce((sum, { weight }) => sum + weight, 0);
    let rest = this.random.next() * whole;
    for (const project of this.projects) {
      rest -= project.weight;
      if (rest < 0) return project;
    }
    throw new Error("there is no project");
  }

  /** `times` is how often the same request is sent at once. */
  private async createJobs(
    project: LoadedProject,
    wish: {
      count: number;
      isKeyed: boolean;
      times: number;
      habit: Habit;
      delayMs: number;
      isMortal?: boolean;
      flow?: LoadedFlow | undefined;
    },
  ): Promise<void> {
    const { recording, random } = this;
    const request = `t${++this.requestCount}`;
    const policy = { maxAttempts: 1 + random.below(4), baseSeconds: 1, capSeconds: 1 + random.below(2) };
    const tokens =
      wish.count === 1 ? [request] : Array.from({ length: wish.count }, (_, n) => `${request}.${n}`);
    const runAt =
      wish.delayMs === 0 ? "" : `"run_at":"${new Date(Date.now() + wish.delayMs).toISOString()}",`;
    const region = random.pick(["us-east", "eu-central"]);
    const flow = wish.flow === undefined ? "" : `"flow":${JSON.stringify(termsOf(wish.flow))},`;
    const texts = tokens.map(
      (token) =>
        `{"target_url":"${this.targets.jobUrl(project.no, wish.habit, token, wish.isMortal)}",${runAt}"region":"${region}",${flow}` +
        `"payload":${payloadOf(token)},"retry_policy":{"max_attempts":${policy.maxAttempts},"base_seconds":1,"cap_seconds":${policy.capSeconds}}}`,
    );
    // The answer tells which job the request has made, or else the rows at the end do.
    const asked = tokens.map((token) => ({
      ...{ kind: "job asked" as const, at: recording.now, job: token, project: project.no, request },
      ...policy,
    }));
    for (const event of asked) recording.note(event);
    this.askedCount += tokens.length;
    const [path, body] =
      wish.count === 1 ? ["/v2/jobs", texts[0] ?? ""] : ["/v2/jobs/batch", `{"jobs":[${texts.join()}]}`];
    const key = { body, ...(wish.isKeyed && { key: request }) };
    const once = () =>
      wish.isKeyed ? project.api.untilAnswered("POST", path, key) : project.api.ask("POST", path, key);
    const answers = await Promise.all(Array.from({ length: wish.times }, once));
    this.noteCreation(project, asked, answers);
  }

  /** A request that has been repeated for longer than `run_at` may be in the past is rightly refused for that. */
  private noteCreation(
    project: LoadedProject,
    asked: Extract<HistoryEvent, { kind: "job asked" }>[],
    answers: readonly Answered[],
  ): void {
    const { recording } = this;
    const [request = ""] = asked.map((event) => event.request);
    const told = answers.filter((answer) => answer.kind === "answered");
    const madeBy = told.filter(({ status }) => status === MADE).map(({ body }) => jobsOf(body));
    const [{ at: askedAt } = { at: recording.now }] = asked;
    const isLate = recording.now - askedAt > RUN_AT_PAST_SECONDS_MAX * 1_000;
    const isTooLate = (body: Refusal) => isLate && body.error?.code === "run_at_in_past";
    for (const { status, body } of told)
      if (status !== MADE && status !== REFUSED_FOR_ITS_RATE && !isTooLate(body))
        recording.faults.push(`${request} was refused: ${JSON.stringify(body)}`);
    for (const made of madeBy) {
      const key = `${project.no} ${request}`;
      recording.note({ kind: "key answered", at: recording.now, key, made: made.map(({ id }) => id).join() });
    }
    const [made] = madeBy;
    if (made === undefined && told.length === answers.length && !told.some(({ isRepeated }) => isRepeated))
      for (const { job } of asked) recording.note({ kind: "job refused", at: recording.now, job });
    for (const [index, { id, run_at }] of (made ?? []).entries()) {
      const event = asked[index];
      if (event !== undefined) event.job = id;
      const [at, clock] = [recording.now, recording.readClock()];
      recording.note({ kind: "job accepted", at, clock, job: id, dueAt: Date.parse(run_at) });
      this.acceptedCount++;
      this.jobs.push({ project, id });
      if (this.jobs.length > REMEMBERED_JOBS) this.jobs.shift();
    }
  }

  private async cancel(): Promise<void> {
    // Recent jobs are preferred, since more of them can still be canceled.
    const job = this.jobs.at(-1 - Math.floor(this.jobs.length * this.random.next() ** 3));
    if (job !== undefined) await this.cancelJob(job.project, job.id);
  }

  private async cancelJob({ api }: LoadedProject, id: string): Promise<void> {
    const { recording } = this;
    const answer = await api.untilAnswered("DELETE", `/v2/jobs/${id}`);
    if (answer.status !== 200) return;
    const { attempts } = answer.body as { attempts: number };
    recording.meet(attempts > 0 ? "cancel: after an attempt" : "cancel: before the first attempt");
    recording.note({ kind: "job canceled", at: recording.now, job: id, attempts });
  }

  private async retry(project: LoadedProject): Promise<void> {
    const { recording, random } = this;
    const status = random.pick(["failed", "failed", "timed_out"]);
    const listed = await project.api.ask("GET", `/v2/runs?status=${status}&limit=20`);
    if (listed.kind === "unknown" || listed.status !== 200) return;
    const { data } = listed.body as { data: { id: string; job_id: string }[] };
    const run = data[random.below(data.length)];
    if (run === undefined) return;
    const at = recording.now;
    const key = `retry ${++this.requestCount}`;
    const answer = await project.api.untilAnswered("POST", `/v2/runs/${run.id}/retry`, { key });
    if (answer.status !== MADE) return;
    recording.meet("retry by hand");
    const made = answer.body as { id: string; job_id: string; attempt: number };
    const again = { job: made.job_id, run: made.id };
    recording.note({ kind: "retry asked", at, ...again });
    recording.note({ kind: "retry accepted", at: recording.now, ...again, attempt: made.attempt });
    recording.note({ kind: "key answered", at: recording.now, key: `${project.no} ${key}`, made: made.id });
  }

  private pauseForAWhile(project: LoadedProject): Promise<void> {
    const id = project.schedules[this.random.below(project.schedules.length)];
    return this.forAWhile(id, async (isOn) => {
      if (id !== undefined) await this.setSchedule(project, id, !isOn);
    });
  }

  /** Pauses a key for a while, or gives a pinned key more places. */
  private changeFlowForAWhile(project: LoadedProject): Promise<void> {
    const flow = project.flows[this.random.below(project.flows.length)];
    if (flow === undefined) return Promise.resolve();
    const isRaised = flow.isPinned === true && this.random.chance(0.5);
    const raised = { ...flow, concurrency: (flow.concurrency ?? 0) + MORE_PLACES };
    return this.forAWhile(`${project.no} ${flow.key}`, async (isOn) => {
      if (isRaised) await this.setFlow(project, isOn ? raised : flow, { paused: false, isLooser: isOn });
      else await this.setFlow(project, flow, { paused: isOn, isLooser: !isOn });
      this.recording.meet(isRaised ? "flow key: given other limits" : "flow key: paused");
    });
  }

  /** Notes the first limits of a key. A pinned key is given them by hand, another key gets them from its jobs. */
  async beginFlow(project: LoadedProject, flow: LoadedFlow): Promise<void> {
    if (flow.isPinned) await this.setFlow(project, flow, { paused: false, isLooser: true });
    else this.noteFlow(project, flow, false);
  }

  private async setFlow(
    project: LoadedProject,
    flow: LoadedFlow,
    { paused, isLooser }: { paused: boolean; isLooser: boolean },
  ): Promise<void> {
    if (isLooser) this.noteFlow(project, flow, paused);
    const { concurrency } = flow;
    const body = JSON.stringify({ paused, ...(flow.isPinned && { concurrency, pinned: true }) });
    await project.api.untilAnswered("PATCH", `/v2/flows/${flow.key}`, { body });
    if (!isLooser) this.noteFlow(project, flow, paused);
  }

  /** A change that lets more start is noted before it is asked for, one that lets fewer start once it is answered. */
  private noteFlow({ no }: LoadedProject, { key, concurrency, rate }: LoadedFlow, paused: boolean): void {
    const { recording } = this;
    const [at, clock] = [recording.now, recording.readClock()];
    const name = { project: no, environment: "production", gate: key };
    recording.note({ kind: "flow set", at, clock, ...name, concurrency, rate, paused });
  }

  private disableForAWhile(project: LoadedProject): Promise<void> {
    const id = project.endpoints[this.random.below(project.endpoints.length)];
    return this.forAWhile(id, async (isOn) => {
      if (id !== undefined) await this.setEndpoint(project, id, !isOn);
    });
  }

  /** An activation is noted before it is asked for, a pause once it is answered: between them the schedule may fire. */
  async setSchedule({ api }: LoadedProject, schedule: string, isActive: boolean): Promise<void> {
    const { recording } = this;
    const note = () =>
      recording.note({
        kind: "schedule set",
        at: recording.now,
        clock: recording.readClock(),
        schedule,
        isActive,
      });
    if (isActive) note();
    await api.untilAnswered("PATCH", `/v2/schedules/${schedule}`, { body: `{"paused":${!isActive}}` });
    if (!isActive) note();
  }

  async setEndpoint({ api }: LoadedProject, endpoint: string, isEnabled: boolean): Promise<void> {
    const { recording } = this;
    const note = () => recording.note({ kind: "endpoint set", at: recording.now, endpoint, isEnabled });
    const body = `{"status":"${isEnabled ? "enabled" : "disabled"}"}`;
    if (isEnabled) note();
    await api.untilAnswered("PATCH", `/v2/webhooks/${endpoint}`, { body });
    if (!isEnabled) note();
  }

  /** Turns something on, and off again after a while. A resource that is on already is left alone. */
  private async forAWhile(id: string | undefined, set: (isOn: boolean) => Promise<void>): Promise<void> {
    if (id === undefined || this.resources.has(id)) return;
    this.resources.add(id);
    await set(true);
    await Bun.sleep(this.random.between(AWHILE_MS.least, AWHILE_MS.end));
    await set(false);
    this.resources.delete(id);
  }
}

/** The flow that a job carries in its request. */
const termsOf = ({ key, hold, concurrency, rate, isPinned }: LoadedFlow) => ({
  key,
  hold,
  ...(concurrency !== null && !isPinned && { concurrency }),
  ...(rate !== null && { rate: { count: rate.count, per_seconds: rate.perSeconds } }),
});
