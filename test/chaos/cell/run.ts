import { RESCUE_GRACE_MS } from "../../../services/worker/duties/rescue.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import type { EventType } from "../../../shared/domain/webhook.ts";
import { STATEMENT_TIMEOUT_MS } from "../../../shared/store/database/database.ts";
import { Random } from "../../simulation/cell/random.ts";
import { askAdmin } from "../../support/admin-program.ts";
import {
  checkHistory,
  listUnchecked,
  type Rule,
  type Violation,
} from "../../support/history/check-history.ts";
import type { History, HistoryEvent, Terms } from "../../support/history/history.ts";
import { watchPauses } from "../../support/pauses.ts";
import { Api } from "./api.ts";
import { ATTEMPT_TIMEOUT_MS, ChaosCell, LEASE_TTL_MS, WEBHOOK_TIMEOUT_MS } from "./cell.ts";
import { FAULTS, type Fault, type Scene } from "./faults.ts";
import { readCell, tokenOf } from "./final-state.ts";
import { Load, type LoadedFlow, type LoadedProject } from "./load.ts";
import { countPaths, countProbes } from "./paths.ts";
import { makePlan, type PlannedFault } from "./plan.ts";
import { Recording } from "./recording.ts";
import { type Habit, payloadOf, Targets } from "./targets.ts";

export interface Wish {
  seed: number;
  /** For how long faults begin, and the mean time between two. */
  faultsMs: number;
  everyMs: number;
  /** The time between two operations of clients. */
  operationEveryMs: number;
  /** The folder of all files of this run, its logs included. */
  folder: string;
}

export interface Outcome {
  seed: number;
  isPooled: boolean;
  history: History;
  violations: Violation[];
  /** The rules that this history says nothing about. */
  unchecked: Rule[];
  /** Faults beside the violations. */
  faults: readonly string[];
  counts: ReadonlyMap<string, number>;
  jobs: { asked: number; accepted: number };
  /** The faults with their times. */
  timeline: readonly string[];
  folder: string;
  lastedMs: number;
}

/** The work of a dead process is taken over within this time. */
const TAKEOVER_MS = LEASE_TTL_MS + 5_000;
/** As in the simulation: a takeover, a backlog, and an attempt whose node cannot be proved dead. */
const CATCHES_UP_WITHIN_MS = TAKEOVER_MS + 10_000 + ATTEMPT_TIMEOUT_MS + RESCUE_GRACE_MS;
const DRAINS_WITHIN_MS = 180_000 + ATTEMPT_TIMEOUT_MS + 2 * RESCUE_GRACE_MS;
const STARTS_WITHIN_MS = 2_000;
const TOLERANCE_MS = 200;
const LOOK_EVERY_MS = 500;
const PART_WITHIN_MS = 30_000;
const QUIET_JOBS = 8;
const QUIET_JOB_EVERY_MS = 250;
const LIMITED_REQUESTS_PER_MINUTE = 90;
const SCHEDULE_SECONDS = [0, 5, 10, 15, 20, 25];
/** The part of the faults' time for which one host is away. The host counts as down after half a minute. */
const AWAY_PART = 0.64;
const FLOWS: readonly LoadedFlow[] = [
  { key: "one", hold: "attempt", concurrency: 1, rate: null },
  { key: "ten", hold: "attempt", concurrency: 10, rate: null },
  { key: "in-order", hold: "job", concurrency: 1, rate: null },
  { key: "three-jobs", hold: "job", concurrency: 3, rate: null },
  { key: "paced", hold: "attempt", concurrency: null, rate: { count: 3, perSeconds: 4 } },
  { key: "paced-jobs", hold: "job", concurrency: 2, rate: { count: 2, perSeconds: 2 } },
  { key: "pinned", hold: "attempt", concurrency: 2, rate: null, isPinned: true },
];

/** Runs one cell under the faults of a seed, heals it, lets it drain, and judges what was recorded. */
export async function runCell(wish: Wish): Promise<Outcome> {
  const { seed, folder } = wish;
  const begunAt = performance.now();
  const beganAt = Date.now();
  const plan = makePlan(seed, wish);
  const recording = new Recording();
  const members = { gateway: 2, worker: 3, delivery: 2 };
  const clocks = new Random(seed, "clocks");
  const cell = await ChaosCell.start({ folder, recording, members, isPooled: plan.isPooled, clocks });
  const targets = await Targets.start(recording, new Random(seed, "targets"));
  const run = new CellRun(wish, { cell, targets, countsLostAt: [] }, recording);
  try {
    await run.addProjects();
    const terms = await run.go(plan.steps);
    await countPaths(recording, cell.postgres, cell.logs);
    const { final, tables } = await readCell(cell.postgres.url, beganAt);
    countProbes(recording, final);
    const idOf = new Map(
      final.jobs.map(({ job }) => [tokenOf(tables.jobs.get(idToUuid(job))?.target_url), job]),
    );
    const history = { terms, final, events: recording.events.map((event) => named(event, idOf)) };
    return {
      ...{ seed, history, folder, isPooled: plan.isPooled, counts: recording.counts, timeline: run.timeline },
      violations: checkHistory(history),
      unchecked: listUnchecked(history),
      faults: recording.faults,
      jobs: { asked: run.load.askedCount, accepted: run.load.acceptedCount },
      lastedMs: performance.now() - begunAt,
    };
  } finally {
    await cell.stop();
    await targets.stop();
  }
}

/** A request that was never answered is known by its token until the rows tell which job it has made. */
function named(event: HistoryEvent, idOf: ReadonlyMap<string, string>): HistoryEvent {
  if (event.kind !== "job asked" && event.kind !== "job refused") return event;
  return { ...event, job: idOf.get(event.job) ?? event.job };
}

class CellRun {
  readonly timeline: string[] = [];
  load: Load;
  private readonly projects: LoadedProject[] = [];
  private quiet: LoadedProject | null = null;
  private readonly limits = new Map<number, number>();
  private limited = 0;
  private readonly random: Random;
  private loadBeganAt = 0;

  constructor(
    private readonly wish: Wish,
    private readonly scene: Scene,
    private readonly recording: Recording,
  ) {
    this.random = new Random(wish.seed, "load");
    this.load = new Load(this.projects, scene.targets, recording, this.random);
  }

  async addProjects(): Promise<void> {
    await this.addProject({
      concurrency: 3,
      weight: 4,
      endpoints: ["good", "flaky"],
      schedules: SCHEDULE_SECONDS,
    });
    const flows = FLOWS;
    await this.addProject({ concurrency: 12, weight: 6, endpoints: ["good"], schedules: [3, 13], flows });
    await this.addProject({ concurrency: 2, weight: 2, endpoints: ["silent"], schedules: [] });
    const requestsPerMinute = LIMITED_REQUESTS_PER_MINUTE;
    const limited = { concurrency: 4, weight: 3, endpoints: [], schedules: [], requestsPerMinute };
    this.limited = (await this.addProject(limited)).no;
    await this.addProject({
      concurrency: 6,
      weight: 3,
      endpoints: [],
      schedules: [],
      flows,
      parksAtHosts: true,
    });
    this.quiet = await this.addProject({ concurrency: 8, weight: 0, endpoints: [], schedules: [] });
  }

  /** Begins the load and the faults, heals, and waits for the end of everything. */
  async go(steps: readonly PlannedFault[]): Promise<Terms> {
    const { cell, targets, countsLostAt } = this.scene;
    const watching = this.watchHolds();
    const loading = this.load.begin(this.wish.operationEveryMs);
    this.loadBeganAt = performance.now();
    const away = targets.beAway(AWAY_PART * this.wish.faultsMs);
    await this.strike(steps);
    await away;
    loading.stop();
    await this.untilReady();
    const healedAt = performance.now();
    this.tell("all has healed");
    targets.isHealed = true;
    const pauses = await watchPauses(cell.postgres.url, () => cell.members);
    await this.load.untilAnswered();
    const [first] = this.projects;
    if (first !== undefined) await this.load.createAndCancel(first);
    const isFirstDrained = await this.settle(true);
    this.tell(isFirstDrained ? "nothing is owed" : "not everything has ended in time");
    await Bun.sleep(Math.max(0, healedAt + TAKEOVER_MS - performance.now()));
    const quietFrom = performance.now();
    const before = pauses.read();
    await this.passQuietTimes();
    const pauseMs = pauses.longestMs();
    await pauses.stop();
    const isDrained = isFirstDrained && (await this.settle(false));
    this.tell(isDrained ? "all has ended" : "not everything has ended in time");
    await watching.stop();
    for (const [name, { counts }] of cell.links) this.countLink(name, counts);
    return {
      ...{ limits: this.limits, withQuota: new Set(), isDrained, quietFrom, healedAt, countsLostAt },
      attemptTimeoutMs: ATTEMPT_TIMEOUT_MS,
      webhookTimeoutMs: WEBHOOK_TIMEOUT_MS,
      graceMs: RESCUE_GRACE_MS,
      // A pause of the machine can delay an attempt by several times its length. While each commit is held up, all attempts are.
      catchesUpWithinMs: CATCHES_UP_WITHIN_MS + Math.max(4 * before.longestMs, before.totalMs),
      startsWithinMs: STARTS_WITHIN_MS + 4 * pauseMs,
      toleranceMs: TOLERANCE_MS,
      statementWaitsMs: STATEMENT_TIMEOUT_MS,
      requestsPerMinute: new Map([[this.limited, LIMITED_REQUESTS_PER_MINUTE]]),
    };
  }

  private async addProject(wish: {
    concurrency: number;
    weight: number;
    endpoints: Habit[];
    schedules: readonly number[];
    requestsPerMinute?: number;
    flows?: readonly LoadedFlow[];
    parksAtHosts?: boolean;
  }): Promise<LoadedProject> {
    const { cell, targets } = this.scene;
    const { weight, flows = [], parksAtHosts = false } = wish;
    const { no, key, secret } = await cell.addProject(wish);
    const api = new Api(() => cell.bases, key, no, this.recording, this.random);
    const project: LoadedProject = { no, api, weight, schedules: [], endpoints: [], flows, parksAtHosts };
    this.limits.set(no, wish.concurrency);
    targets.secrets.set(`p${no}`, secret);
    for (const habit of wish.endpoints)
      project.endpoints.push(await this.addEndpoint(project, habit, ["job.succeeded", "job.failed"]));
    for (const flow of flows) await this.load.beginFlow(project, flow);
    if (parksAtHosts) {
      await api.untilAnswered("PATCH", "/v2/project", { body: '{"park_failing_hosts":true}' });
      // This endpoint is never disabled, so that its events tell each time at which a host was down.
      await this.addEndpoint(project, "good", ["host.down", "host.up"]);
    }
    for (const second of wish.schedules) {
      const token = `s${second}`;
      const terms = {
        name: token,
        cron: `${second},${second + 30} * * * * *`,
        target_url: targets.jobUrl(no, "good", token),
      };
      const body = `${JSON.stringify(terms).slice(0, -1)},"payload":${payloadOf(token)}}`;
      project.schedules.push(
        ((await api.untilAnswered("POST", "/v2/schedules", { body, key: token })).body as { id: string }).id,
      );
    }
    this.projects.push(project);
    return project;
  }

  private async addEndpoint(
    { no, api }: LoadedProject,
    habit: Habit,
    events: readonly EventType[],
  ): Promise<string> {
    const { targets } = this.scene;
    const url = targets.endpointUrl(no, habit);
    const body = JSON.stringify({ url, events });
    const answer = await api.untilAnswered("POST", "/v2/webhooks", { body, key: url });
    const made = answer.body as { id: string; secret: string };
    targets.secrets.set(url, made.secret);
    return made.id;
  }

  /** Begins each fault at its time, on a part that has none, and resolves when all have ended. */
  private async strike(steps: readonly PlannedFault[]): Promise<void> {
    const busy = new Set<string>();
    const striking: Promise<void>[] = [];
    for (const step of steps) {
      await Bun.sleep(Math.max(0, this.loadBeganAt + step.at - performance.now()));
      const fault = FAULTS.find(({ name }) => name === step.fault);
      const part = fault === undefined ? undefined : await this.findPart(fault, step, busy);
      if (fault === undefined || part === undefined) {
        this.recording.meet(`left out: ${step.fault}`);
        continue;
      }
      busy.add(part);
      this.recording.meet(`fault: ${fault.name}`);
      this.tell(`${fault.name} (${part})`);
      const strike = async () => {
        const end = await fault.begin(this.scene, part, step.chance);
        await Bun.sleep(step.forMs);
        await end();
        this.tell(`ended: ${fault.name} (${part})`);
        busy.delete(part);
      };
      striking.push(strike());
    }
    await Promise.all(striking);
  }

  /** Answers a part that has no fault. If all parts have one it waits for a while, and all later faults wait too. */
  private async findPart(
    fault: Fault,
    step: PlannedFault,
    busy: ReadonlySet<string>,
  ): Promise<string | undefined> {
    const parts = fault.partsOf(this.scene);
    const giveUpAt = performance.now() + PART_WITHIN_MS;
    for (;;) {
      const free = parts.filter((part) => !busy.has(part));
      if (free.length > 0) return free[Math.floor(step.part * free.length)];
      if (parts.length === 0 || performance.now() > giveUpAt) return undefined;
      await Bun.sleep(LOOK_EVERY_MS / 10);
    }
  }

  /** Resolves once every process serves and the standby has all that the primary has. */
  private async untilReady(): Promise<void> {
    const { cell } = this.scene;
    await Promise.all(cell.members.map((member) => member.untilReady()));
    await cell.postgres.untilInSync();
  }

  /** Acts as an operator: resumes the cell whenever it takes its database for a restored one, which it is not. */
  private watchHolds(): { stop(): Promise<void> } {
    const { postgres } = this.scene.cell;
    let isStopped = false;
    const watch = async () => {
      while (!isStopped) {
        await Bun.sleep(LOOK_EVERY_MS);
        const held = await postgres.query("SELECT FROM held_regions WHERE restored LIMIT 1").catch(() => []);
        if (held.length === 0) continue;
        this.recording.meet("the cell held itself, and an operator resumed it");
        this.tell("the cell holds itself: resumed");
        await askAdmin(postgres.url, "resume", "--as", "chaos").catch(() => undefined);
      }
    };
    const watching = watch();
    return {
      async stop() {
        isStopped = true;
        await watching;
      },
    };
  }

  /** Waits until nothing is owed. While schedules are active, their jobs and all deliveries are left out. */
  private async settle(areSchedulesActive: boolean): Promise<boolean> {
    const { postgres } = this.scene.cell;
    const giveUpAt = performance.now() + DRAINS_WITHIN_MS;
    while (performance.now() < giveUpAt) {
      const [row] = await postgres.query<{ jobs: number; deliveries: number }>(OWED, [areSchedulesActive]);
      if (row?.jobs === 0 && row.deliveries === 0) return true;
      await Bun.sleep(LOOK_EVERY_MS);
    }
    return false;
  }

  /** Creates some jobs that must all start in time, amid firings that must all take place. */
  private async passQuietTimes(): Promise<void> {
    const { quiet } = this;
    if (quiet === null) throw new Error("there is no project for quiet times");
    for (let index = 0; index < QUIET_JOBS; index++) {
      this.load.create(quiet, "good", index % 2 === 0 ? 0 : 1_000 + 200 * index);
      await Bun.sleep(QUIET_JOB_EVERY_MS);
    }
    await this.load.untilAnswered();
    await this.settle(true);
    for (const project of this.projects)
      for (const id of project.schedules) await this.load.setSchedule(project, id, false);
  }

  private countLink(name: string, counts: Readonly<Record<"held" | "swallowed", number>>): void {
    this.recording.meet("link: held", counts.held);
    this.recording.meet("link: swallowed", counts.swallowed);
    if (name.endsWith("/postgres"))
      this.recording.meet("link: swallowed answers of Postgres", counts.swallowed);
  }

  private tell(text: string): void {
    this.timeline.push(
      `${((performance.now() - this.loadBeganAt) / 1_000).toFixed(2).padStart(8)} s  ${text}`,
    );
  }
}

const OWED = `
SELECT (SELECT count(*)::int FROM open_jobs o
         WHERE NOT $1 OR NOT EXISTS (SELECT FROM jobs j WHERE j.project_no = o.project_no AND j.environment = o.environment
                                        AND j.region = o.region AND j.id = o.job_id AND j.schedule_id IS NOT NULL)) AS jobs,
       (SELECT count(*)::int FROM open_deliveries WHERE NOT $1) AS deliveries`;
