import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type ServiceProcess, startService } from "../../support/service-process.ts";
import { openSettableClock, type SettableClock } from "../../support/set-clock.ts";
import { sendSignal } from "../../support/signal.ts";
import type { TcpProxy } from "../../support/tcp-proxy.ts";
import type { Recording } from "./recording.ts";

export type MemberKind = "gateway" | "worker" | "delivery";

const BLOCK_LOOP = join(import.meta.dir, "block-loop.ts");
const SUPERVISOR_WAITS_MS = 300;
const STARTS_MAX = 20;
const READY_TIMEOUT_MS = 180_000;
const READY_ASK_MS = 3_000;
const LOOK_EVERY_MS = 50;
/** The words in the log of a node that ends because others took it for dead. */
const DECLARED_DEAD = "declared dead";
const LOG_END_CHARACTERS = 3_000;

/** One process of the cell, its links to the others, and its supervisor, which starts it again when it has ended. */
export class Member {
  private service: ServiceProcess | null = null;
  private isWanted = false;
  /** It changes with each start, kill and stop. What a supervisor has begun before is over then. */
  private life = 0;
  /** Null where Debian's library for it cannot be had. */
  readonly clock: SettableClock | null;
  readonly log: string;
  private readonly blockFile: string;

  constructor(
    readonly kind: MemberKind,
    readonly name: string,
    private readonly environment: Record<string, string>,
    readonly links: { postgres: TcpProxy; nats: TcpProxy },
    private readonly recording: Recording,
    folder: string,
    private readonly outside = { startService, wait: () => Bun.sleep(SUPERVISOR_WAITS_MS) },
  ) {
    this.clock = openSettableClock(join(folder, `${name}.clock`));
    this.log = join(folder, `${name}.log`);
    this.blockFile = join(folder, `${name}.block`);
  }

  get port(): number {
    return this.service?.port ?? 0;
  }

  get pid(): number {
    return this.service?.pid ?? 0;
  }

  get isUp(): boolean {
    return this.isWanted && this.service !== null;
  }

  /** Starts the process, unless it runs. Resolves once the process is ready. */
  async start(): Promise<void> {
    if (this.isWanted) return;
    this.isWanted = true;
    await this.run(++this.life);
  }

  async kill(): Promise<void> {
    this.end();
    await this.service?.end("SIGKILL");
  }

  /** Tells the process to stop, and waits for its end. */
  async stop(): Promise<void> {
    this.end();
    // The process may be unable to end its work in time if Postgres is away as well.
    const code = await this.service?.end("SIGTERM");
    this.recording.meet(code === 0 ? "process stopped" : "process not stopped in time");
  }

  private end(): void {
    this.isWanted = false;
    this.life++;
  }

  signal(signal: "SIGSTOP" | "SIGCONT"): void {
    this.send(signal);
  }

  blockLoop(ms: number): void {
    writeFileSync(this.blockFile, String(ms));
    this.send("SIGUSR2");
  }

  private send(signal: NodeJS.Signals): void {
    if (this.isWanted) sendSignal(this.pid, signal);
  }

  /** Resolves once the process serves. */
  async untilReady(): Promise<void> {
    const giveUpAt = performance.now() + READY_TIMEOUT_MS;
    while (performance.now() < giveUpAt) {
      const isReady = await fetch(`http://127.0.0.1:${this.service?.opsPort}/readyz`, {
        signal: AbortSignal.timeout(READY_ASK_MS),
      }).then(
        ({ status }) => status === 200,
        () => false,
      );
      if (isReady) return;
      await Bun.sleep(LOOK_EVERY_MS);
    }
    this.recording.faults.push(`${this.name} was not ready after all had healed: see ${this.log}`);
  }

  private async run(life: number): Promise<void> {
    for (let tries = 1; ; tries++) {
      const logFrom = existsSync(this.log) ? statSync(this.log).size : 0;
      try {
        const service = await this.startProcess(life);
        if (service !== null) void this.supervise(service, { life, logFrom });
        return;
      } catch (error) {
        // The process was killed or stopped again while it started, or taken for dead.
        if (life !== this.life) return;
        if (tries === STARTS_MAX) throw error;
        this.recording.meet("process ended at its start");
        await this.outside.wait();
        if (life !== this.life) return;
      }
    }
  }

  /** Null if the process was killed or stopped while it started. */
  private async startProcess(life: number): Promise<ServiceProcess | null> {
    if (this.service !== null) await this.service.startAgain();
    else {
      const options = { logTo: this.log, preload: BLOCK_LOOP, onEnd: this.clock?.forget };
      const service = await this.outside.startService(this.kind, this.settings(), options);
      if (life === this.life) this.service = service;
      else await service.end("SIGKILL");
    }
    return life === this.life ? this.service : null;
  }

  /** `logFrom` is where the process began to write in the log, in bytes. */
  private async supervise(
    service: ServiceProcess,
    { life, logFrom }: { life: number; logFrom: number },
  ): Promise<void> {
    const code = await service.ended;
    if (life !== this.life) return;
    const written = existsSync(this.log) ? readFileSync(this.log).subarray(logFrom).toString() : "";
    const end = written.slice(-LOG_END_CHARACTERS);
    if (code === 1 && end.includes(DECLARED_DEAD)) this.recording.meet(DECLARED_DEAD);
    else this.recording.faults.push(`${this.name} ended by itself with ${code}:\n${end}`);
    await this.outside.wait();
    if (life === this.life) await this.run(life);
  }

  private settings(): Record<string, string> {
    return { ...this.environment, ...this.clock?.environment, BLOCK_MS_FILE: this.blockFile };
  }
}
