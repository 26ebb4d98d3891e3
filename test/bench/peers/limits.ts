import { randomBytes } from "node:crypto";
import { createIdSource, RUN_PREFIX } from "../../../shared/domain/ids.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { migrate } from "../../../shared/store/cell/migrate.ts";
import { addNode } from "../../../shared/store/cell/nodes.ts";
import { openDatabase } from "../../../shared/store/database/database.ts";
import { claimOrdinary } from "../../../shared/store/queue/claim-ordinary.ts";
import { settleOrdinary } from "../../../shared/store/queue/settle-ordinary.ts";
import { createJobs } from "../../../shared/store/resources/job-creation.ts";
import { claimPort } from "../../support/port.ts";
import { createTestDatabase, hasOwnServer } from "../../support/postgres.ts";
import { newJob, PAYLOAD } from "../harness/jobs.ts";
import type { Load, LoadReport } from "../harness/load.ts";
import { beginUse, shareOf } from "../harness/meter.ts";
import { findServer, isOk, runProgram, spawnBound, until } from "../harness/processes.ts";
import { SINK, type SinkSettings } from "../harness/sink.ts";
import type { Measured } from "./stage.ts";

/**
 * Measures jobwheel's parts alone on this machine: HTTP without work behind it, and the statements for ordinary jobs
 * without HTTP on one connection. Several connections may do more.
 */
export async function measureLimits(seconds: number): Promise<Measured[]> {
  return [await measureHttp(seconds), ...(await measureStatements(seconds))];
}

const CONNECTIONS = 64;
const BATCH = 100;
const log = createLog({ name: "limits", level: "warn" });

/** Measures bare sockets that write a request and read a status, and the sink, which reads and compares the body. */
async function measureHttp(seconds: number): Promise<Measured> {
  const stops: (() => unknown)[] = [];
  try {
    const port = await claimPort();
    const settings: SinkSettings = { port, body: PAYLOAD };
    const pid = spawnBound([process.execPath, SINK, JSON.stringify(settings)], {}, stops);
    await until("the sink is ready", () => isOk(`http://127.0.0.1:${port}`));
    await fetch(`http://127.0.0.1:${port}/begin?jobs`);
    const load: Load = {
      port,
      key: "",
      path: "/created",
      body: PAYLOAD,
      ratePerS: null,
      seconds,
      connections: CONNECTIONS,
    };
    let clientUs = 0;
    const endUse = await beginUse({ pids: new Map([["server", pid]]), apart: { client: () => clientUs } });
    const { report, cpuUs } = await runProgram<LoadReport>("load.ts", load);
    clientUs = cpuUs;
    const use = await endUse();
    const requests = report.answeredCount;
    return {
      what: "HTTP without work",
      figures: { "jobs/s": requests / seconds },
      cpuUs: shareOf(use.cpuUs, requests),
      apartUs: shareOf(use.apartUs, requests),
      othersCores: use.othersCores,
    };
  } finally {
    for (const stop of stops.reverse()) await stop();
  }
}

/** One connection creates, claims and settles batches of 100, one batch after the other. */
async function measureStatements(seconds: number): Promise<Measured[]> {
  const database = await createTestDatabase("limits");
  try {
    await migrate(database.url);
    const db = openDatabase(database.url, { connections: 1, log });
    await db.run("seed", SEED, []);
    const node = await addNode(db, {
      ...{ kind: "delivery", name: "limits", regions: ["us-east"], process: "bench" },
    });
    if (node === null) throw new Error("the name is taken");
    const ids = createIdSource(randomBytes);
    const lanes = new Set<string>();
    const watched = {
      pids: new Map<string, number>(),
      apart: {},
      postgres: {
        pid: await findServer(db),
        isOwn: hasOwnServer(),
        isCounted: true,
        findOthers: async () => [],
      },
    };
    const scope = { projectNo: 1, environment: "production", region: "us-east" } as const;
    const endAt = performance.now() + seconds * 1_000;
    const tookMs = { insert: 0, claim: 0, settle: 0 };
    let jobs = 0;
    const time = async <Result>(statement: keyof typeof tookMs, run: Promise<Result>): Promise<Result> => {
      const begunAt = performance.now();
      const result = await run;
      tookMs[statement] += performance.now() - begunAt;
      return result;
    };
    const endUse = await beginUse(watched);
    for (; performance.now() < endAt; jobs += BATCH) {
      const made = Array.from({ length: BATCH }, () =>
        newJob({
          projectNo: 1,
          targetUrl: "https://example.com/hook",
          payload: PAYLOAD,
          runAt: Date.now() - 1_000,
        }),
      );
      await time("insert", createJobs(db, made, lanes));
      const claims = made.map(({ id }) => ({
        ...{ ...scope, jobId: id, attempt: 1, runId: ids.next(RUN_PREFIX, Date.now()) },
      }));
      const claimed = await time("claim", claimOrdinary(db, node, claims));
      if (claimed.includes(null)) throw new Error("a claim was refused");
      const outcome = { status: "succeeded", responseStatus: 200, error: null, durationMs: 1 } as const;
      const settlements = claims.map((claim) => ({
        ...{ ...claim, ...outcome, shard: made[0]?.shard ?? 0, next: { status: "succeeded" } as const },
      }));
      const settled = await time("settle", settleOrdinary(db, settlements));
      if (settled.includes(null)) throw new Error("a settlement was refused");
    }
    const { cpuUs, apartUs, othersCores } = await endUse();
    await db.close();
    return [
      {
        what: "the statements",
        figures: {
          "jobs/s": (jobs * 1_000) / (tookMs.insert + tookMs.claim + tookMs.settle),
          "inserted, rows/s": (jobs * 1_000) / tookMs.insert,
          "claimed, rows/s": (jobs * 1_000) / tookMs.claim,
          "settled, rows/s": (jobs * 1_000) / tookMs.settle,
        },
        cpuUs: shareOf(cpuUs, jobs),
        apartUs: shareOf(apartUs, jobs),
        othersCores,
      },
    ];
  } finally {
    await database.drop();
  }
}

const SEED = `
WITH project AS (
  INSERT INTO projects (id, name, plan, api_version) VALUES (gen_random_uuid(), 'limits', 'enterprise', '2026-11-01')
  RETURNING no)
INSERT INTO flows (project_no, concurrency, month, retention_class)
SELECT no, ${2 * BATCH}, date_trunc('month', now())::date, 2 FROM project`;
