import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { idToUuid } from "../../shared/domain/ids.ts";
import { PAYLOAD_BYTES_MAX } from "../../shared/domain/job.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { changeProject } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { openTestDatabase } from "../support/database.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { startService } from "../support/service-process.ts";

/** Two gateways over one database, each a process of its own: one is attacked, and the other shows the machine's share. */
export interface ReadGateways {
  attacked: {
    port: number;
    rssBytes(): number;
    /** The time that the event loop's thread has worked so far, without the time in which the machine did other work. */
    workedMs(): number;
    waitedMs(): number;
  };
  quiet: {
    port: number;
    /** The time that the event loop's thread has waited for a processor so far, because of the machine's other work. */
    waitedMs(): number;
  };
  /** Adds a project of the plan scale, with its plan's request rate unless `asksOften` lifts that. Answers its key. */
  addProject(options?: { asksOften: boolean }): Promise<string>;
  /** Adds schedules until their payloads fill a page of 4 MiB. */
  fillPage(key: string): Promise<void>;
  /** Adds a schedule with this many timetables, each too short for a firing. Answers its id. */
  addChangedSchedule(key: string, timetableCount: number): Promise<string>;
  startCrowd(key: string, path: string, clients: number, manner: "reads" | "does not read"): Crowd;
  stop(): Promise<void>;
}

export interface Crowd {
  /** Lets all clients send once more. Answers the statuses, or "sent" for clients that do not read. */
  wave(): Promise<string>;
  stop(): Promise<void>;
}

const PAGE_BYTES = 4_194_304;

export async function startReadGateways(): Promise<ReadGateways> {
  const database = await createMigratedDatabase("reads");
  const db = openTestDatabase(database.url);
  const nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
  };
  const [attacked, quiet] = await Promise.all([
    startService("gateway", environment),
    startService("gateway", environment),
  ]);
  const crowds = new Set<Crowd>();

  async function addSchedule(key: string, payload: object): Promise<string> {
    const response = await fetchServed(`http://127.0.0.1:${quiet.port}/v2/schedules`, {
      method: "POST",
      headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
      body: JSON.stringify({
        name: randomBytes(8).toString("hex"),
        cron: "0 0 1 1 *",
        target_url: "https://example.com/hook",
        payload,
      }),
    });
    const { id } = (await response.json()) as { id?: string };
    if (id === undefined) throw new Error(`a schedule was refused with ${response.status}`);
    return id;
  }

  return {
    attacked: {
      port: attacked.port,
      rssBytes: () => rssBytes(attacked.pid),
      workedMs: () => mainThreadOf(attacked.pid).workedMs,
      waitedMs: () => mainThreadOf(attacked.pid).waitedMs,
    },
    quiet: { port: quiet.port, waitedMs: () => mainThreadOf(quiet.pid).waitedMs },
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
    async addChangedSchedule(key, timetableCount) {
      const id = await addSchedule(key, {});
      await db.run(
        "past",
        `INSERT INTO timetables (since, schedule_id, paused, cron, timezone)
         SELECT now() - (1 + $2::int - n) * interval '1 s', $1, false, (n % 60) || ' 3 29 2 *', 'Europe/Berlin'
           FROM generate_series(1, $2::int) n`,
        [idToUuid(id), timetableCount],
      );
      return id;
    },
    startCrowd(key, path, clients, manner) {
      const program = `${import.meta.dir}/crowd.ts`;
      const child = spawn(
        process.execPath,
        [program, String(attacked.port), path, key, String(clients), manner],
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
      await Promise.all([attacked.end("SIGKILL"), quiet.end("SIGKILL")]);
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

function mainThreadOf(pid: number): { workedMs: number; waitedMs: number } {
  const [workedNs, waitedNs] = readFileSync(`/proc/${pid}/task/${pid}/schedstat`, "utf8").split(" ");
  return { workedMs: Number(workedNs) / 1e6, waitedMs: Number(waitedNs) / 1e6 };
}
