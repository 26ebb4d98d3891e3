import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { openDatabase } from "../../shared/store/database/database.ts";
import { changeProject } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { startService } from "../support/service-process.ts";
import { printTable, summarize } from "./measure.ts";

/**
 * How long a neighbour waits while the gateway reads the worst bodies that it accepts and refuses. The gateway is a
 * process of its own, and so is the neighbour, which asks for its project and for an unknown path all the time: the
 * longest time for the one is what a caller feels, that for the other the longest block of the event loop. Arguments
 * are words of the bodies' names; without any, all are sent.
 */

const ROUNDS = 3;
const ASK_EVERY_MS = 2;
/** Before a body is sent and after it was answered the neighbour goes on asking. */
const MARGIN_MS = 200;
const MEBIBYTE = 1_048_576;
const PAYLOAD_BYTES = 262_144;
const JOB = `"target_url":"https://example.com/hook","run_at":"2030-01-01T00:00:00Z"`;

interface Hostile {
  name: string;
  path: string;
  body: string;
  keyed?: boolean;
}

const fill = (bytes: number, piece: (n: number) => string) => {
  const pieces: string[] = [];
  for (let n = 0, length = 0; length < bytes - 64; n++) {
    pieces.push(piece(n));
    length += (pieces.at(-1)?.length ?? 0) + 1;
  }
  return pieces.join(",");
};
const job = (payload: string) => `{${JOB},"payload":${payload}}`;
const single = (name: string, payload: string): Hostile => ({ name, path: "/v2/jobs", body: job(payload) });
const batch = (name: string, payload: string, keyed = false): Hostile => ({
  name: `100 times ${name}${keyed ? ", with a key" : ""}`,
  path: "/v2/jobs/batch",
  body: `{"jobs":[${Array<string>(100).fill(job(payload))}]}`,
  keyed,
});
const whole = (name: string, text: string): Hostile => ({ name, path: "/v2/jobs/batch", body: text });

/** The engine's hash of such a name multiplies by zero, so that its middle does not count. */
const colliding = (n: number) =>
  `"\\u0093K\\u00b8\\u008b${n.toString(36).padEnd(8, "_")}\\u00c9\\u00ac.\\u0096":0`;
const member = (n: number) => `"${(999_999 - n).toString(36)}":0`;
const payloadOf = (piece: (n: number) => string) => `[${fill(PAYLOAD_BYTES, piece)}]`;
const objectOf = (piece: (n: number) => string, bytes = PAYLOAD_BYTES) => `{"x":{${fill(bytes, piece)}}}`;

const BODIES: Hostile[] = [
  single("{} in 256 KB", `{"x":${payloadOf(() => "{}")}}`),
  single("members in 256 KB", objectOf(member)),
  single("colliding members in 256 KB", objectOf(colliding)),
  single("members in 1 MB", objectOf(member, MEBIBYTE - 200)),
  batch("a string of 256 KB", `{"x":"${"y".repeat(PAYLOAD_BYTES - 10)}"}`),
  batch("escapes in 256 KB", `{"x":"${"\\n".repeat(PAYLOAD_BYTES / 2 - 10)}"}`),
  batch("{} in 256 KB", `{"x":${payloadOf(() => "{}")}}`),
  batch("members in 256 KB", objectOf(member)),
  batch("colliding members in 256 KB", objectOf(colliding)),
  batch("a string of 256 KB", `{"x":"${"y".repeat(PAYLOAD_BYTES - 10)}"}`, true),
  batch("{} in 256 KB", `{"x":${payloadOf(() => "{}")}}`, true),
  batch("members in 256 KB", objectOf(member), true),
  whole("32 MB of members", `{${fill(31 * MEBIBYTE, member)}}`),
  whole("32 MB of members and a duplicate", `{"jobs":[${job(`{${fill(31 * MEBIBYTE, member)},"lfls":0}`)}]}`),
  whole(
    "32 MB of nested arrays",
    `{"jobs":[${job(fill(31 * MEBIBYTE, () => "[".repeat(60) + "]".repeat(60)))}]}`,
  ),
  whole("32 MB of digits", `{"jobs":[${"1".repeat(31 * MEBIBYTE)}]}`),
  whole("32 MB of white space", `{"jobs":[]}${" ".repeat(31 * MEBIBYTE)}`),
];

async function main(): Promise<void> {
  const words = process.argv.slice(2);
  const chosen = BODIES.filter(({ name }) => words.length === 0 || words.some((word) => name.includes(word)));
  const log = createLog({ name: "bodies", level: "warn" });
  const database = await createTestDatabase("bodies");
  await migrate(database.url);
  const db = openDatabase(database.url, { connections: 2, log });
  const secretsKey = randomBytes(32);
  const [attacker, neighbour] = await Promise.all(
    ["attacker", "neighbour"].map(async (name) => {
      const made = await createProjectWithKeys(db, createSeal(secretsKey), {
        name,
        plan: "enterprise",
        defaultRegion: "us-east",
      });
      await changeProject(db, made.project.id, { requestsPerMinuteOverride: 1_000_000 }, testCause());
      return made.keys.production;
    }),
  );
  const nats = await startNatsServer();
  const gateway = await startService("gateway", {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("hex"),
  });
  const asker = startNeighbour(gateway.port, neighbour ?? "");
  const rows: string[][] = [];
  try {
    await asker.longest(MARGIN_MS);
    for (const hostile of chosen) {
      process.stderr.write(`${hostile.name}\n`);
      const samples = { tookMs: [] as number[], blockMs: [] as number[], waitMs: [] as number[] };
      let status = 0;
      for (let round = 0; round < ROUNDS; round++) {
        const startedAt = performance.now();
        status = await send(gateway.port, attacker ?? "", hostile);
        samples.tookMs.push(performance.now() - startedAt);
        const { outside, project } = await asker.longest(MARGIN_MS);
        samples.blockMs.push(outside);
        samples.waitMs.push(project);
      }
      const memoryMb = memoryKbOf(gateway.pid) / 1_024;
      const figures = [samples.tookMs, samples.blockMs, samples.waitMs].map((each) => summarize(each));
      rows.push([hostile.name, String(status), ...figures, memoryMb.toFixed(0)]);
    }
  } finally {
    asker.stop();
    await gateway.end("SIGTERM");
    await nats.stop();
    await db.close();
    await database.drop();
  }
  printTable(
    ["body", "status", "took, ms", "longest block, ms", "neighbour's longest wait, ms", "RSS, MB"],
    rows,
  );
}

async function send(port: number, key: string, { path, body, keyed }: Hostile): Promise<number> {
  const response = await fetch(`http://127.0.0.1:${port}${path}`, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${key}`,
      "Content-Type": "application/json",
      ...(keyed ? { "Idempotency-Key": randomBytes(8).toString("hex") } : {}),
    },
    body,
  });
  await response.arrayBuffer();
  return response.status;
}

interface Longest {
  outside: number;
  project: number;
}

function startNeighbour(port: number, key: string) {
  let report = Promise.withResolvers<Longest>();
  const child = Bun.spawn([process.execPath, import.meta.path, "neighbour", String(port), key], {
    stdio: ["ignore", "inherit", "inherit"],
    ipc: (message) => report.resolve(message as Longest),
  });
  return {
    /** The longest times since this was last asked for, so many milliseconds from now. */
    async longest(afterMs: number): Promise<Longest> {
      await Bun.sleep(afterMs);
      report = Promise.withResolvers<Longest>();
      child.send("report");
      return report.promise;
    },
    stop: () => child.kill(),
  };
}

/** The other process: asks for both, one after the other, and tells the longest times when it is asked. */
async function ask(port: string, key: string): Promise<void> {
  let longest: Longest = { outside: 0, project: 0 };
  process.on("message", () => {
    process.send?.(longest);
    longest = { outside: 0, project: 0 };
  });
  const asks: [keyof Longest, string][] = [
    ["outside", "/"],
    ["project", "/v2/project"],
  ];
  await Promise.all(
    asks.map(async ([name, path]) => {
      for (;;) {
        const startedAt = performance.now();
        const response = await fetch(`http://127.0.0.1:${port}${path}`, {
          headers: { Authorization: `Bearer ${key}` },
        });
        await response.arrayBuffer();
        longest[name] = Math.max(longest[name], performance.now() - startedAt);
        await Bun.sleep(ASK_EVERY_MS);
      }
    }),
  );
}

function memoryKbOf(pid: number): number {
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]);
}

if (process.argv[2] === "neighbour") await ask(process.argv[3] ?? "", process.argv[4] ?? "");
else await main();
