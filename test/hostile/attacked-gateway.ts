import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { PAYLOAD_BYTES_MAX } from "../../shared/domain/job.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { changeProject } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { openTestDatabase } from "../support/database.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase } from "../support/postgres.ts";
import { startService } from "../support/service-process.ts";

/** A gateway in a process of its own, whose memory can be seen from outside. */
export interface AttackedGateway {
  rssBytes(): number;
  /** The key of a new project of the plan scale, with its plan's request rate unless `asksOften` lifts it. */
  addProject(options?: { asksOften: boolean }): Promise<string>;
  /** Adds as many schedules as fill a page with 4 MiB of payloads. */
  fillPage(key: string): Promise<void>;
  startCrowd(key: string, path: string, clients: number, manner: "reads" | "does not read"): Crowd;
  stop(): Promise<void>;
}

export interface Crowd {
  /** Lets all of them send once more. Answers the statuses; for clients that do not read, it answers when all have sent. */
  wave(): Promise<string>;
  stop(): Promise<void>;
}

const PAGE_BYTES = 4_194_304;

export async function startAttackedGateway(): Promise<AttackedGateway> {
  const database = await createMigratedDatabase("reads");
  const db = openTestDatabase(database.url);
  const nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
  };
  const gateway = await startService("gateway", environment);
  const crowds = new Set<Crowd>();

  async function addSchedule(key: string, payload: object): Promise<void> {
    const response = await fetch(`http://127.0.0.1:${gateway.port}/v2/schedules`, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: JSON.stringify({
        name: randomBytes(8).toString("hex"),
        cron: "0 0 1 1 *",
        target_url: "https://example.com/hook",
        payload,
      }),
    });
    if (response.status !== 201) throw new Error(`a schedule was refused with ${response.status}`);
  }

  return {
    rssBytes: () => rssBytes(gateway.pid),
    async addProject({ asksOften } = { asksOften: false }) {
      const wish = { name: "reads", plan: "scale", defaultRegion: "us-east" } as const;
      const { project, keys } = await createProjectWithKeys(db, createSeal(secretsKey), wish);
      if (asksOften)
        await changeProject(db, project.id, { requestsPerMinuteOverride: 1_000_000 }, testCause());
      return keys.production;
    },
    async fillPage(key) {
      // The character at the end makes the engine hold each of the others in two bytes.
      const filler = () => `${randomBytes((PAYLOAD_BYTES_MAX - 12) / 2).toString("hex")}😀`;
      for (let bytes = 0; bytes < PAGE_BYTES; bytes += PAYLOAD_BYTES_MAX)
        await addSchedule(key, { x: filler() });
    },
    startCrowd(key, path, clients, manner) {
      const program = `${import.meta.dir}/crowd.ts`;
      const child = spawn(
        process.execPath,
        [program, String(gateway.port), path, key, String(clients), manner],
        { stdio: ["pipe", "pipe", "inherit"] },
      );
      const ended = new Promise((resolve) => child.on("close", resolve));
      const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
      const crowd: Crowd = {
        async wave() {
          child.stdin.write("\n");
          const { value, done } = await lines.next();
          if (done) throw new Error("the crowd has gone");
          return value;
        },
        async stop() {
          crowds.delete(crowd);
          child.kill("SIGKILL");
          await ended;
        },
      };
      crowds.add(crowd);
      return crowd;
    },
    async stop() {
      for (const crowd of crowds) await crowd.stop();
      await gateway.end("SIGKILL");
      await nats.stop();
      await db.close();
      await database.drop();
    },
  };
}

/** The resident memory of a process. */
function rssBytes(pid: number): number {
  const kib = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
  if (kib === undefined) throw new Error("the process has no memory");
  return Number(kib) * 1_024;
}
