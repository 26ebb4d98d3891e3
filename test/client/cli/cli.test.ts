import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { runCommandLine } from "../../../services/cli/command-line.ts";
import { createClient, type SchedulePut } from "../../../shared/client/index.ts";
import { until } from "../../flow/support.ts";
import { claimPort } from "../../support/port.ts";
import { startTcpProxy } from "../../support/tcp-proxy.ts";
import { runInTerminal } from "../../support/terminal.ts";
import { useEveryCommand } from "./every-command.ts";
import { type CommandLine, PROGRAM, startCommandLine, steady, steadyTerminal } from "./support.ts";

setDefaultTimeout(180_000);

/** The files of every command's output with --json and on a terminal. WRITE_GOLDEN=1 writes them anew. */
const golden = (name: string) => join(import.meta.dir, "../../golden", name);

let { folder, url, echo, apiKey, environment, jobwheel, ask, run, stop } = {} as CommandLine;
beforeAll(async () => {
  ({ folder, url, echo, apiKey, environment, jobwheel, ask, run, stop } = await startCommandLine());
});
afterAll(() => stop());

test("the packed program keeps a key where nobody else reads it, does not show it, and works with it on Node", async () => {
  const child = Bun.spawn(["npx", "--offline", "jobwheel", "login", "--url", url, "--json"], {
    cwd: folder,
    env: environment,
    stdio: [new Blob([`${apiKey}\n`]), "pipe", "pipe"],
  });
  const [said, complaint] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  expect([await child.exited, `${said}${complaint}`.includes(apiKey)]).toEqual([0, false]);
  const { file, environment: where } = JSON.parse(said);
  const modes = [file, dirname(file)].map((path) => statSync(path).mode & 0o777);
  expect([where, ...modes]).toEqual(["development", 0o600, 0o700]);
  const watched = await run(["node", PROGRAM, "jobs", "create", echo, "--watch", "--json"], environment);
  expect([watched.code, JSON.parse(watched.said)]).toMatchObject([0, { job: { status: "succeeded" } }]);
});

test("every command's --json is that of the golden file", async () => {
  let found = "";
  const output = { write: (text: string) => (found += text) };
  const { stdin } = process;
  await useEveryCommand({ folder, echo, asJson: true, environment, stdin, stdout: output, stderr: output });
  expectGolden("command-line.txt", steady(found));
});

test("every command shows people on a terminal what is in the golden file, asks before much is changed, and hides keys", async () => {
  const words = [join(import.meta.dir, "on-a-terminal.ts"), folder, url, echo];
  const terminal = runInTerminal([process.execPath, ...words], environment);
  await until(() => terminal.text.includes("which is not shown"));
  terminal.type(`${apiKey}\r`);
  for (let asked = 1; asked <= 2; asked++) {
    await until(() => terminal.text.split("[y/N]").length > asked);
    terminal.type("y\r");
  }
  expect([await terminal.ended, terminal.text.includes(apiKey)]).toEqual([0, false]);
  expect(terminal.text).toMatch(/\[Kblk_\w+: waiting for its end/);
  expectGolden("command-line-on-a-terminal.txt", steadyTerminal(terminal.text));
});

test("webhooks listen shows verified events, and takes its endpoint away", async () => {
  const listening = jobwheel("webhooks", "listen", "--count", "1", "--json");
  await until(async () => (await ask<{ data: unknown[] }>("webhooks", "list")).data.length === 1);
  const job = await ask("jobs", "create", echo);
  const { code, said } = await listening;
  expect([code, JSON.parse(said)]).toMatchObject([
    0,
    { type: "job.succeeded", data: { job: { id: job.id } } },
  ]);
  expect((await ask<{ data: unknown[] }>("webhooks", "list")).data).toEqual([]);
});

test("webhooks listen takes its endpoint away when its terminal is closed", async () => {
  const listening = runInTerminal(["node", join(folder, PROGRAM), "webhooks", "listen"], environment);
  await until(() => listening.text.includes("listens at"));
  expect(await listening.end("SIGHUP")).toBe(130);
  expect((await ask<{ data: unknown[] }>("webhooks", "list")).data).toEqual([]);
});

test("webhooks listen takes its endpoint away when Ctrl-C comes before the answer that tells its id", async () => {
  const proxy = await startTcpProxy({ host: "127.0.0.1", port: Number(new URL(url).port) });
  const interrupted = new AbortController();
  const listening = runCommandLine(["webhooks", "listen"], {
    environment: { JOBWHEEL_URL: `http://127.0.0.1:${proxy.port}`, JOBWHEEL_KEY: apiKey },
    stdin: process.stdin,
    stdout: { write: () => undefined },
    stderr: { write: () => undefined },
    signal: interrupted.signal,
  });
  proxy.hold("to client");
  await until(() => proxy.counts.held > 0);
  const endpoints = async () => (await ask<{ data: unknown[] }>("webhooks", "list")).data.length;
  expect(await endpoints()).toBe(1);
  interrupted.abort();
  proxy.release();
  expect([await listening, await endpoints()]).toEqual([130, 0]);
  await proxy.stop();
});

test("schedules apply shows each member that the file leaves out and the schedule has", async () => {
  const file = join(folder, "every-member.json");
  const least = { name: "every-member", cron: "0 3 1 1 *", target_url: echo };
  const rest: Required<Omit<SchedulePut, "cron" | "target_url" | "paused">> = {
    timezone: "Asia/Tokyo",
    payload: { full: true },
    retry_policy: { max_attempts: 1 },
    overlap: "skip",
    spread_seconds: 60,
    tags: ["yearly"],
    flow: { key: "customer:1", concurrency: 1 },
  };
  const apply = async (schedule: object, ...options: string[]) => {
    writeFileSync(file, JSON.stringify([schedule]));
    type Applied = { schedules: { action: string; changes: { member: string }[] }[] };
    const { schedules } = await ask<Applied>("schedules", "apply", file, ...options);
    return schedules.map(({ action, changes }) => [action, changes.map(({ member }) => member).sort()]);
  };
  await apply({ ...least, ...rest });
  expect(await apply({ ...least, ...rest })).toEqual([["unchanged", []]]);
  const changed = [["changed", Object.keys(rest).sort()]];
  expect(await apply(least, "--dry-run")).toEqual(changed);
  expect(await apply(least)).toEqual(changed);
  expect(await apply(least)).toEqual([["unchanged", []]]);
  await ask("schedules", "delete", "every-member");
});

test("jobs explain says why attempts failed, and what the next one waits for; --json is the service's own answer", async () => {
  const { id } = await createClient({ baseUrl: url, apiKey }).jobs.create({
    target_url: "http://127.0.0.1:9/",
    retry_policy: { max_attempts: 2, base_seconds: 86_400, cap_seconds: 86_400 },
  });
  const error = "The target refused the connection (ECONNREFUSED).";
  type Explained = { waiting: { for: string; message: string } | null };
  const explained = await until(async () => {
    const found = await ask<Explained>("jobs", "explain", id);
    return found.waiting?.for === "backoff" && found;
  });
  expect(JSON.stringify(explained)).not.toContain(error);
  const lines = (await jobwheel("jobs", "explain", id)).said.split("\n");
  expect(lines[0]).toEndWith(`, after attempt 1 failed: ${error}`);
  expect(lines.find((line) => line.includes("\tended\t"))).toEndWith(`, error ${error}`);
});

test("jobs create --watch tells a pipe the job's id at once, beside the result", async () => {
  const { code, said, complaint } = await jobwheel("jobs", "create", echo, "--watch");
  expect([code, said.split("\t").slice(0, 2)]).toEqual([0, ["1", "succeeded"]]);
  expect(complaint).toMatch(/^job_\w+ is created\n$/);
});

test.each([
  [2, ["jobs", "list", "--flow", "a"], "Did you mean --flow-key?"],
  [2, ["jobs", "create", "https://example.com/", "--flow-key", "a"], "Did you mean --flow?"],
  [2, ["jobs", "get"], "it takes JOB_ID"],
  [2, ["jobs", "create", "https://example.com/", "--payload", "[]"], "must be a JSON object"],
  [2, ["jobs", "create", "https://example.com/", "--payload", "@/none"], "no such file"],
  [2, ["jobs", "list", "--profile", "other"], "run jobwheel login"],
  [2, ["bulk", "cancel", "--all"], "--yes says so"],
  [1, ["jobs", "create", "nowhere"], "invalid_request"],
])("exit code %i tells scripts: %j", async (code, words, sentence) => {
  const ended = await jobwheel(...words);
  expect([ended.code, ended.said]).toEqual([code, ""]);
  expect(ended.complaint).toContain(sentence);
});

test("exit code 3 tells scripts that nobody answers", async () => {
  const port = await claimPort();
  const away = { JOBWHEEL_URL: `http://127.0.0.1:${port}`, JOBWHEEL_KEY: "svc_dev_x" };
  const { code, complaint } = await run(["node", PROGRAM, "project"], { ...environment, ...away });
  expect([code, complaint]).toEqual([
    3,
    `jobwheel: The connection failed before an answer came: connect ECONNREFUSED 127.0.0.1:${port}. It was asked for at http://127.0.0.1:${port}.\n`,
  ]);
});

test("a clock that does not answer is said to have been asked for at the ops address, and what sets it", async () => {
  const port = await claimPort();
  const away = { JOBWHEEL_OPS_URL: `http://127.0.0.1:${port}` };
  const { code, complaint } = await run(["node", PROGRAM, "clock"], { ...environment, ...away });
  expect([code, complaint]).toEqual([
    3,
    `jobwheel: The connection failed before an answer came: connect ECONNREFUSED 127.0.0.1:${port}. It was asked for at http://127.0.0.1:${port}, which JOBWHEEL_OPS_URL sets.\n`,
  ]);
});

test("exit code 130 tells scripts of Ctrl-C, and what was watched goes on", async () => {
  const later = await ask("jobs", "create", echo, "--run-at", "1h");
  const watching = runInTerminal(["node", join(folder, PROGRAM), "jobs", "watch", later.id], environment);
  await until(() => watching.text.includes("is queued"));
  watching.type("\x03");
  expect(await watching.ended).toBe(130);
  expect(await ask<{ status: string }>("jobs", "get", later.id)).toMatchObject({ status: "queued" });
});

test("a pipe gets tabs, without colours", async () => {
  const { said } = await jobwheel("jobs", "list", "--status", "succeeded", "--limit", "1");
  expect(said).toMatch(/^job_\w+\tsucceeded\t1\tus-east\t\S+\thttp:\S+\n$/);
});

function expectGolden(name: string, found: string): void {
  if (process.env.WRITE_GOLDEN !== undefined) writeFileSync(golden(name), found);
  expect(found.split("\n")).toEqual(readFileSync(golden(name), "utf8").split("\n"));
}
