import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { until } from "./support.ts";

const README = readFileSync(join(import.meta.dir, "../../README.md"), "utf8");
/** The lines under "Try it", block by block. */
const [start = "", create = "", list = ""] = [
  ...(/^## Try it$(.*?)^## /ms.exec(README)?.[1] ?? "").matchAll(/^```sh\n(.*?)^```$/gms),
].map(([, lines = ""]) => lines);

// The tests are skipped on a machine without curl.
describe.skipIf(Bun.which("curl") === null)("the first minute of README.md", () => {
  let database: TestDatabase;
  let standalone: ServiceProcess;
  const dataDir = mkdtempSync(join(tmpdir(), "first-minute-"));
  beforeAll(async () => {
    database = await createTestDatabase("first_minute");
    standalone = await startService("standalone", { DATA_DIR: dataDir, DATABASE_URL: database.url });
  });
  afterAll(async () => {
    await standalone.end("SIGTERM");
    await database.drop();
    rmSync(dataDir, { recursive: true, force: true });
  });

  /** Runs the lines in a shell, with the ports of this standalone and the key that it has printed. */
  function follow(lines: string): { exitCode: number; answer: Record<string, unknown> } {
    const key = /svc_dev_[A-Za-z0-9]+(?=\s)/.exec(standalone.output)?.[0];
    const here = lines
      .replaceAll("127.0.0.1:8080", `127.0.0.1:${standalone.port}`)
      .replaceAll("127.0.0.1:9090", `127.0.0.1:${standalone.opsPort}`)
      .replace(/^KEY=.*$/m, "");
    const { exitCode, stdout } = Bun.spawnSync(["bash", "-c", `KEY=${key}\n${here}`]);
    return { exitCode, answer: JSON.parse(stdout.toString()) };
  }

  test("starts what it says", () => {
    expect(start).toBe("npm start\n");
  });

  test("sends a job that arrives as it is shown, and lists its run", async () => {
    await until(() => /svc_dev_[A-Za-z0-9]+(?=\s)/.exec(standalone.output)?.[0]);
    // A busy machine may look like an outage of Postgres, after which a customer asks again.
    const { exitCode, answer: job } = await until(() => {
      const made = follow(create);
      const { code } = (made.answer.error ?? {}) as { code?: string };
      return code !== "service_unavailable" && made;
    });
    expect({ exitCode, status: job.status }).toEqual({ exitCode: 0, status: "queued" });
    const shown = /`(echo: )job_\w+( arrived with .*)`/.exec(README);
    const line = `${shown?.[1]}${job.id}${shown?.[2]}`;
    await until(() => standalone.output.includes(line));
    const run = await until(
      () => (follow(list).answer.data as { status: string; job_id: string }[] | undefined)?.[0],
    );
    expect(run.job_id).toBe(job.id as string);
  });
});
