import pg from "pg";
import { type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import type { ClockReading } from "../../support/history/history.ts";
import type { Recording } from "./recording.ts";
import type { SimProcess } from "./sim-process.ts";
import { TakenKey } from "./store/creations.ts";
import { answer, isReading } from "./store/model-statements.ts";
import { fromMs, type Instant, toMs } from "./store/parameters.ts";
import type { StatementTime, Tables } from "./store/tables.ts";
import type { Timeline } from "./timeline.ts";

/** The fates of statements that a fault strikes. */
export const FATES = ["not done", "answer lost", "done later", "slow"] as const;
export type Fate = (typeof FATES)[number];

export interface FaultyStatements {
  /** The fault strikes statements whose names have this text in them. */
  names: string;
  chance: number;
  fates: readonly Fate[];
}

export interface StatementFault extends FaultyStatements {
  /** Null for all processes. */
  process: string | null;
}

const LATENCY_MS = { least: 0.2, end: 2 };
/** How long a statement may take on the server (STATEMENT_TIMEOUT_MS), less the way there. */
const SLOW_MS_MAX = 4_900;
/** When a client notices that its connection is broken, at the latest (ANSWER_TIMEOUT_MS). */
const NOTICED_MS_MAX = 8_000;
const BROKEN_MS_MAX = 300;
const UNIQUE_VIOLATION = "23505";

interface Question {
  name: string;
  values: readonly unknown[];
  resolve(rows: object[]): void;
  reject(error: Error): void;
}

/** Only figures for operators use the query builder, for the tables of runs, of which the model has none. */
const NO_TABLES = { execute: async () => ({ rows: [] }) } as unknown as Database["drizzle"];

/**
 * Postgres, as the processes meet it: its clock, and the way to it with its faults. The statements themselves are those of
 * the model. A statement that writes takes effect at one instant, up to 5 s after it began.
 */
export class Server {
  /** Faults that hold now. */
  readonly faults = new Set<StatementFault>();
  isDown = false;
  private leaptMs = 0;
  private latestAt = 0;

  constructor(
    private readonly timeline: Timeline,
    private readonly recording: Recording,
    private readonly tables: Tables,
    private readonly beginsAt: number,
    private readonly watch: Watch,
  ) {}

  /** The database's clock. */
  get clock(): Instant {
    const at = fromMs(this.beginsAt + this.timeline.now + this.leaptMs);
    this.latestAt = Math.max(this.latestAt, at);
    return at;
  }

  readClock(): ClockReading {
    const nowAt = toMs(this.clock);
    return { nowAt, latestAt: Math.max(nowAt, toMs(this.latestAt)) };
  }

  leap(ms: number): void {
    this.leaptMs += ms;
    this.recording.trace(() => `the database's clock leaps by ${ms} ms`);
  }

  connect(process: SimProcess): Database {
    const database: Database = {
      drizzle: NO_TABLES,
      run: (name, _text, values) => {
        const { promise, resolve, reject } = Promise.withResolvers<object[]>();
        process.act(name, () => this.ask(process, { name, values, resolve, reject }));
        return promise as Promise<never[]>;
      },
      // Other processes may see the rows between the statements of one transaction; nothing that matters depends on
      // that.
      transact: (act) => act(database),
      async close() {},
    };
    return database;
  }

  private ask(process: SimProcess, question: Question): void {
    const { random } = process;
    const { name } = question;
    const fate = this.isDown ? "not done" : this.drawFate(process, name);
    if (fate !== null) this.recording.meet(`${fate}: ${name}`);
    this.recording.trace(() => `${process.name} asks ${name}${fate === null ? "" : ` (${fate})`}`);
    const fail = (ms: number) =>
      this.timeline.in(ms, process, () => question.reject(new StoreUnavailable(`simulated: ${fate}`)));
    const wayMs = random.between(LATENCY_MS.least, LATENCY_MS.end);
    const lagMs = random.between(0, SLOW_MS_MAX);
    switch (fate) {
      case null:
        // The last statement of a process that dies may still run when others know of its death.
        this.begin(process, question, wayMs, process.isEnding ? lagMs : 0, true);
        break;
      case "slow":
        this.begin(process, question, wayMs, lagMs, true);
        break;
      case "not done":
        fail(random.between(0, BROKEN_MS_MAX));
        break;
      case "done later":
        this.begin(process, question, wayMs, lagMs, false);
        fail(random.between(0, wayMs + lagMs));
        break;
      case "answer lost":
        this.begin(process, question, wayMs, 0, false);
        fail(random.chance(0.1) ? NOTICED_MS_MAX : random.between(wayMs, BROKEN_MS_MAX));
        break;
    }
  }

  private begin(
    process: SimProcess,
    question: Question,
    wayMs: number,
    lagMs: number,
    isAnswered: boolean,
  ): void {
    const finish = (rows: object[] | Error) => {
      if (isAnswered) this.reply(process, question, rows);
    };
    this.timeline.in(wayMs, null, () => {
      const now = this.clock;
      // A reading statement sees the rows of its beginning; a writing one has its locks, and commits, at its end.
      if (isReading(question.name)) {
        const rows = this.execute(question, { now, clock: now });
        this.timeline.in(lagMs, null, () => finish(rows));
      } else this.timeline.in(lagMs, null, () => finish(this.execute(question, { now, clock: this.clock })));
    });
  }

  private execute({ name, values }: Question, time: StatementTime): object[] | Error {
    try {
      const rows = answer(this.tables, name, time, values);
      this.watch(name, values, rows);
      this.recording.trace(() => `Postgres has done ${name}: ${JSON.stringify(rows)}`);
      return rows;
    } catch (error) {
      if (!(error instanceof TakenKey)) throw error;
      return Object.assign(new pg.DatabaseError(error.message, 0, "error"), { code: UNIQUE_VIOLATION });
    }
  }

  private reply(process: SimProcess, { resolve, reject }: Question, rows: object[] | Error): void {
    const wayMs = process.random.between(LATENCY_MS.least, LATENCY_MS.end);
    this.timeline.in(wayMs, process, () => (rows instanceof Error ? reject(rows) : resolve(rows)));
  }

  private drawFate({ name, random }: SimProcess, statement: string): Fate | null {
    for (const { process, names, chance, fates } of this.faults) {
      if ((process !== null && process !== name) || !statement.includes(names)) continue;
      if (random.chance(chance)) return random.pick(fates);
    }
    return null;
  }
}

/** Is told of each statement that has taken effect. */
export type Watch = (name: string, values: readonly unknown[], rows: readonly object[]) => void;
