import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import pg from "pg";
import { openTestDatabase, PATIENT } from "../../test/support/database.ts";
import { claimPort } from "../../test/support/port.ts";
import {
  createMigratedDatabase,
  createTestDatabase,
  type TestDatabase,
} from "../../test/support/postgres.ts";
import { createLog } from "../platform/log.ts";
import { migrate } from "../store/cell/migrate.ts";
import { openDatabase } from "../store/database/database.ts";
import { waitForDatabase } from "./service.ts";

setDefaultTimeout(600_000);

const WAIT_MS_MAX = 180_000;
const LOOK_EVERY_MS = 20;
const BEGINS = "waiting for Postgres";
const ENDS = "Postgres is ready";
const SAID_AGAIN_AFTER_MS = 60_000;
/** How often a service is started again. */
const STARTS_MAX = 5;

let bare: TestDatabase;
beforeAll(async () => {
  bare = await createTestDatabase("waiting");
});
afterAll(() => bare.drop());

interface Started {
  opsUrl: string;
  ended: Promise<number>;
  readonly output: string;
  signal(name: NodeJS.Signals): void;
}
let started: Started[] = [];
afterEach(async () => {
  for (const { signal, ended } of started) {
    signal("SIGKILL");
    await ended;
  }
  started = [];
});

async function start(
  service: string,
  databaseUrl: string,
  environment: Record<string, string> = {},
): Promise<Started> {
  const opsPort = await claimPort();
  const child = Bun.spawn([process.execPath, `services/${service}/main.ts`], {
    cwd: new URL("../..", import.meta.url).pathname,
    env: {
      PATH: process.env.PATH ?? "",
      HOST: "127.0.0.1",
      PORT: String(await claimPort()),
      OPS_PORT: String(opsPort),
      DATABASE_URL: databaseUrl,
      NATS_URL: `nats://127.0.0.1:${await claimPort()}`,
      SECRETS_KEY: "0".repeat(64),
      ...environment,
    },
    stdout: "pipe",
    stderr: "pipe",
  });
  let output = "";
  const take = async (stream: ReadableStream<Uint8Array>) => {
    for await (const chunk of stream) output += new TextDecoder().decode(chunk);
  };
  const ended = Promise.all([take(child.stdout), take(child.stderr), child.exited]).then(
    ([, , code]) => code,
  );
  const process_ = {
    opsUrl: `http://127.0.0.1:${opsPort}`,
    ended,
    get output() {
      return output;
    },
    signal: (name: NodeJS.Signals) => child.kill(name),
  };
  started.push(process_);
  return process_;
}

async function until(holds: () => boolean | Promise<boolean>, explain: () => string): Promise<void> {
  const giveUpAt = performance.now() + WAIT_MS_MAX;
  while (!(await holds())) {
    if (performance.now() > giveUpAt) throw new Error(`it did not come true in time: ${explain()}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

const ask = (url: string) =>
  fetch(url).then(
    ({ status }) => status,
    () => 0,
  );
const countOf = (text: string, words: string) => text.split(words).length - 1;

describe.each(["gateway", "worker", "delivery"])("a %s", (service) => {
  test("whose Postgres is not migrated waits alive, says so in one line, and begins when it is", async () => {
    const own = await createTestDatabase(`waiting_${service}`);
    try {
      let startedAt = performance.now();
      let waiting = await start(service, own.url);
      const untilBegun = () =>
        until(
          () => waiting.output.includes(BEGINS),
          () => waiting.output,
        );
      await untilBegun();
      // The line says something else where a slow machine made no connection in time.
      for (let again = 0; again < STARTS_MAX && waiting.output.includes("timeout"); again++) {
        waiting.signal("SIGKILL");
        startedAt = performance.now();
        waiting = await start(service, own.url);
        await untilBegun();
      }
      expect(await ask(`${waiting.opsUrl}/healthz`)).toBe(200);
      expect(await ask(`${waiting.opsUrl}/readyz`)).toBe(503);
      expect(waiting.output).toContain("npm run migrate");
      await migrate(own.url);
      await until(
        async () => (await ask(`${waiting.opsUrl}/readyz`)) === 200,
        () => waiting.output,
      );
      // A slow machine may let the service wait once more, for the statements of its start. A long wait says so again.
      const [untilEnd = ""] = waiting.output.split(ENDS);
      expect(countOf(untilEnd, BEGINS)).toBeWithin(
        1,
        2 + Math.floor((performance.now() - startedAt) / SAID_AGAIN_AFTER_MS),
      );
      expect(countOf(waiting.output, ENDS)).toBe(1);
      waiting.signal("SIGTERM");
      expect(await waiting.ended).toBe(0);
    } finally {
      await own.drop();
    }
  });

  test("that cannot reach Postgres waits, and SIGTERM ends it with 0", async () => {
    const waiting = await start(service, `postgres://nobody:sesame@127.0.0.1:${await claimPort()}/none`);
    await until(
      () => waiting.output.includes(BEGINS),
      () => waiting.output,
    );
    expect(await ask(`${waiting.opsUrl}/healthz`)).toBe(200);
    expect(await ask(`${waiting.opsUrl}/readyz`)).toBe(503);
    waiting.signal("SIGTERM");
    expect(await waiting.ended).toBe(0);
    expect(waiting.output).not.toContain("sesame");
  });

  test("with a wrong setting refuses at once, whatever Postgres is like", async () => {
    const refusing = await start(service, bare.url, { LOG_LEVEL: "loud" });
    expect(await refusing.ended).toBe(2);
    expect(refusing.output).not.toContain(BEGINS);
  });
});

test.each([
  ["gateway", "secrets_keys"],
  ["worker", "shards"],
  ["delivery", "nodes"],
  ["standalone", "projects"],
])(
  "a %s that loses Postgres while it asks for %s at its start waits, and goes on",
  async (service, table) => {
    const own = await createMigratedDatabase(`waiting_${table}`);
    const operator = new pg.Client({ connectionString: own.url, options: PATIENT });
    operator.on("error", () => undefined);
    await operator.connect();
    try {
      await operator.query(`BEGIN; LOCK TABLE ${table}`);
      const waiting = await start(service, own.url);
      await until(
        async () => {
          await operator.query(CUT_OFF_WAITERS);
          return waiting.output.includes(BEGINS);
        },
        () => waiting.output,
      );
      await operator.query("COMMIT");
      await until(
        async () => (await ask(`${waiting.opsUrl}/readyz`)) === 200,
        () => waiting.output,
      );
    } finally {
      await operator.end();
      await own.drop();
    }
  },
);
/** Within a transaction, Postgres would go on showing the sessions that it showed first. */
const CUT_OFF_WAITERS = `
SELECT pg_stat_clear_snapshot();
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`;

test("a process waits while the schema is of an earlier release, and accepts one of a later release", async () => {
  await migrate(bare.url);
  const log = createLog({ level: "silent", name: "test" });
  const db = openTestDatabase(bare.url, 1, "silent");
  const shift = (by: number) =>
    db.run("shift", "UPDATE drizzle.__drizzle_migrations SET created_at = created_at + $1", [by]);
  try {
    await shift(-1);
    let isReady = false;
    const waiting = waitForDatabase(db, log, { askAgainMs: 1, sayAgainMs: 1_000 }).then((clock) => {
      isReady = true;
      clock.stop();
    });
    await Bun.sleep(100);
    expect(isReady).toBe(false);
    await shift(2);
    await waiting;
  } finally {
    await db.close();
  }
});

test("a wait is logged when it begins, now and then, and when it ends", async () => {
  const lines: string[] = [];
  const log = {
    ...createLog({ level: "silent", name: "test" }),
    warn: (_: object, message: string) => void lines.push(message),
    info: (_: object, message: string) => void lines.push(message),
  };
  const url = new URL(bare.url);
  url.port = String(await claimPort());
  const closed = openDatabase(url.href, { connections: 1, log });
  const open = openTestDatabase(bare.url, 1, "silent");
  let asked = 0;
  const db = {
    ...open,
    run: <Row>(name: string, text: string, values: unknown[]) => {
      asked++;
      return (asked <= 200 ? closed : open).run<Row>(name, text, values);
    },
  };
  const startedAt = performance.now();
  (await waitForDatabase(db, log, { askAgainMs: 1, sayAgainMs: 50 })).stop();
  const elapsedMs = performance.now() - startedAt;
  expect(lines[0]).toBe(BEGINS);
  expect(lines.at(-1)).toBe(ENDS);
  // The log tells of few of the 200 questions without an answer.
  expect(lines.length).toBeGreaterThan(2);
  expect(lines.length).toBeLessThanOrEqual(3 + elapsedMs / 50);
  expect(lines.length).toBeLessThan(200);
  await Promise.all([closed.close(), open.close()]);
});
