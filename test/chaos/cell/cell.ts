import { randomBytes } from "node:crypto";
import { chmodSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { createProjectWithKeys } from "../../../services/admin/create-project.ts";
import { createSeal } from "../../../shared/platform/seal/seal.ts";
import { migrate } from "../../../shared/store/cell/migrate.ts";
import type { Random } from "../../simulation/cell/random.ts";
import { openTestDatabase } from "../../support/database.ts";
import { type NatsServer, startNatsServer } from "../../support/nats-server.ts";
import { type PgBouncer, startPgBouncer } from "../../support/pgbouncer.ts";
import { ReplicatedPostgres } from "../../support/replicated-postgres.ts";
import { startTcpProxy, type TcpProxy } from "../../support/tcp-proxy.ts";
import { Member, type MemberKind } from "./member.ts";
import type { Recording } from "./recording.ts";

export const LEASE_TTL_MS = 3_000;
export const ATTEMPT_TIMEOUT_MS = 4_000;
export const WEBHOOK_TIMEOUT_MS = 3_000;
/** The 48 hours of a delivery's attempts become 6 minutes, and its first waits 10 ms, 0.6 s, 4 s and 14 s. */
const WEBHOOK_RETRY_SCALE = 0.002;
const DRAIN_TIMEOUT_MS = 3_000;
export const SHARDS_PER_REGION = 16;
/** So high that no request of the load is refused for its rate. */
const REQUESTS_PER_MINUTE = 1_000_000;

/** Clocks are off by minutes, some by more than the five minutes that a receiver of signed requests tolerates. */
export const CLOCK_MINUTES = [-9, -3, -1, 0, 1, 3, 9];

export interface CellWish {
  /** The folder of all files of the cell: data, logs, clocks. */
  folder: string;
  recording: Recording;
  members: Record<MemberKind, number>;
  isPooled: boolean;
  /** Decides by how much the clock of each process is off from its start on. Without it all clocks are right. */
  clocks?: Random;
  /** More settings for the services. */
  settings?: Record<string, string>;
}

export interface MadeProject {
  no: number;
  key: string;
  /** The secret that signs the project's requests to targets, in production. */
  secret: string;
}

/**
 * A cell of real processes with a proxy on every link: gateways, workers, delivery nodes, NATS, a Postgres with a
 * synchronous standby, and a PgBouncer before it.
 */
export class ChaosCell {
  readonly members: Member[] = [];
  /** The proxies between the clients and the gateways. */
  readonly front: TcpProxy[] = [];
  /** A worker that joins now and then. */
  private extra: Member | null = null;
  nats: NatsServer;
  private readonly secretsKey = randomBytes(32);

  private constructor(
    private readonly wish: CellWish,
    readonly postgres: ReplicatedPostgres,
    nats: NatsServer,
    /** The proxy before the primary. The pooler connects through it, or every process where there is no pooler. */
    readonly backend: TcpProxy,
    readonly pooler: PgBouncer | null,
  ) {
    this.nats = nats;
  }

  static async start(wish: CellWish): Promise<ChaosCell> {
    const { folder, members } = wish;
    mkdirSync(folder, { recursive: true });
    chmodSync(folder, 0o755);
    const postgres = await ReplicatedPostgres.start(join(folder, "postgres"));
    await migrate(postgres.url);
    const nats = await startNatsServer({ storeDir: join(folder, "nats") });
    const backend = await startTcpProxy(postgres.place);
    const account = postgres.runsAs;
    const pooler = wish.isPooled
      ? await startPgBouncer(postgres.urlOf(backend.port), { folder: join(folder, "postgres"), account })
      : null;
    const cell = new ChaosCell(wish, postgres, nats, backend, pooler);
    for (const kind of ["gateway", "worker", "delivery"] as const)
      for (let number = 1; number <= members[kind]; number++)
        cell.members.push(await cell.prepare(kind, `${kind}-${number}`));
    const minutes = wish.clocks?.shuffle(CLOCK_MINUTES) ?? [];
    for (const [index, member] of cell.members.entries()) member.clock?.set(minutes[index] ?? 0);
    await Promise.all(cell.members.map((member) => member.start()));
    for (const { port } of cell.of("gateway"))
      cell.front.push(await startTcpProxy({ host: "127.0.0.1", port }));
    return cell;
  }

  of(kind: MemberKind): Member[] {
    return this.members.filter((member) => member.kind === kind);
  }

  get bases(): string[] {
    return this.front.map(({ port }) => `http://127.0.0.1:${port}`);
  }

  get folder(): string {
    return this.wish.folder;
  }

  get recording(): Recording {
    return this.wish.recording;
  }

  async addProject(wish: { concurrency: number; requestsPerMinute?: number }): Promise<MadeProject> {
    const db = openTestDatabase(this.postgres.url);
    const terms = { name: "chaos", plan: "scale", defaultRegion: "us-east" } as const;
    const { project, keys, signingSecrets } = await createProjectWithKeys(
      db,
      createSeal(this.secretsKey),
      terms,
    );
    const { concurrency, requestsPerMinute = REQUESTS_PER_MINUTE } = wish;
    await db.run("limit", "UPDATE projects SET requests_per_minute = $2, concurrency = $3 WHERE no = $1", [
      ...[project.no, requestsPerMinute, concurrency],
    ]);
    await db.run("permits", "UPDATE flows SET concurrency = $2 WHERE project_no = $1", [
      project.no,
      concurrency,
    ]);
    await db.close();
    return { no: project.no, key: keys.production, secret: signingSecrets.production };
  }

  /** The worker that joins and leaves. */
  async extraWorker(): Promise<Member> {
    this.extra ??= await this.prepare("worker", "worker-that-joins");
    return this.extra;
  }

  /** Kills NATS and deletes its store. */
  async loseNats(): Promise<void> {
    await this.nats.kill("SIGKILL");
    rmSync(this.nats.storeDir, { recursive: true, force: true });
  }

  async startNats(): Promise<void> {
    const { port, storeDir } = this.nats;
    this.nats = await startNatsServer({ port, storeDir });
  }

  /** Every process that keeps a log of its own. */
  get logs(): string[] {
    return [...this.members, ...(this.extra === null ? [] : [this.extra])].map(({ log }) => log);
  }

  /** Every proxy by the name of its link. */
  get links(): ReadonlyMap<string, TcpProxy> {
    const links = new Map<string, TcpProxy>([["pooler/postgres", this.backend]]);
    for (const { name, links: own } of this.members) {
      links.set(`${name}/postgres`, own.postgres);
      links.set(`${name}/nats`, own.nats);
    }
    for (const [index, proxy] of this.front.entries()) links.set(`clients/gateway-${index + 1}`, proxy);
    return links;
  }

  async stop(): Promise<void> {
    for (const member of [...this.members, ...(this.extra === null ? [] : [this.extra])]) await member.kill();
    await this.nats.stop();
    await this.pooler?.kill();
    await this.postgres.stop();
    for (const proxy of this.links.values()) await proxy.stop();
  }

  private async prepare(kind: MemberKind, name: string): Promise<Member> {
    const { recording, folder, settings } = this.wish;
    const postgresUrl = new URL(this.pooler?.url ?? this.postgres.urlOf(this.backend.port));
    const [postgres, nats] = await Promise.all([
      startTcpProxy({ host: "127.0.0.1", port: Number(postgresUrl.port) }),
      startTcpProxy({ host: "127.0.0.1", port: this.nats.port }),
    ]);
    postgresUrl.port = String(postgres.port);
    const environment = {
      DATABASE_URL: postgresUrl.href,
      NATS_URL: `nats://127.0.0.1:${nats.port}`,
      NODE_NAME: name,
      SECRETS_KEY: this.secretsKey.toString("base64"),
      LEASE_TTL_MS: String(LEASE_TTL_MS),
      ATTEMPT_TIMEOUT_MS: String(ATTEMPT_TIMEOUT_MS),
      WEBHOOK_TIMEOUT_MS: String(WEBHOOK_TIMEOUT_MS),
      WEBHOOK_RETRY_SCALE: String(WEBHOOK_RETRY_SCALE),
      DRAIN_TIMEOUT_MS: String(DRAIN_TIMEOUT_MS),
      SHARDS_PER_REGION: String(SHARDS_PER_REGION),
      ...settings,
    };
    return new Member(kind, name, environment, { postgres, nats }, recording, folder);
  }
}
