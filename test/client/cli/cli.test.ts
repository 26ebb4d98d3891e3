import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { until } from "../../flow/support.ts";
import { type CommandLine, PROGRAM, startCommandLine, steady } from "./support.ts";

setDefaultTimeout(180_000);

/** What every command prints with --json, ids and instants left out. WRITE_GOLDEN=1 writes it anew. */
const GOLDEN = join(import.meta.dir, "../../golden/command-line.txt");
const SCHEDULES = `schedules:
  - name: nightly
    cron: 0 3 1 1 *
    timezone: Europe/Berlin
    target_url: TARGET
    payload: { full: true }
`;

let { folder, url, echo, apiKey, environment, jobwheel, ask, run, stop } = {} as CommandLine;
beforeAll(async () => {
  ({ folder, url, echo, apiKey, environment, jobwheel, ask, run, stop } = await startCommandLine());
});
afterAll(() => stop());

test("a key is asked for once, kept where nobody else reads it, and not shown", async () => {
  const child = Bun.spawn(["npx", "--offline", "jobwheel", "login", "--url", url, "--json"], {
    cwd: folder,
    env: environment,
    stdio: [new Blob([`${apiKey}\n`]), "pipe", "pipe"],
  });
  const [said, complaint] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  expect([await child.exited, `${said}${complaint}`.includes(apiKey)]).toEqual([0, false]);
  const { file, environment: where } = JSON.parse(said);
  expect([where, statSync(file).mode & 0o777]).toEqual(["development", 0o600]);
});

test("every command's --json is that of the golden file", async () => {
  const file = join(folder, "schedules.yaml");
  writeFileSync(file, SCHEDULES.replace("TARGET", echo));
  const lines: string[] = [];
  const tell = async (...words: string[]) => {
    const { code, said, complaint } = await jobwheel(...words, "--json");
    lines.push(
      `$ jobwheel ${words.join(" ").replace(file, "schedules.yaml")}`,
      said.trim() || complaint.trim(),
      `exit ${code}`,
      "",
    );
    return said === "" ? { id: "" } : (JSON.parse(said.trim().split("\n").at(-1) ?? "") as { id: string });
  };
  const inAYear = new Date(Date.now() + 365 * 86_400_000).toISOString();
  const later = await tell("jobs", "create", "https://example.com/", "--run-at", inAYear, "--tag", "a:1");
  await tell("jobs", "get", later.id);
  await tell("jobs", "explain", later.id);
  await tell("jobs", "list", "--tag", "a:1");
  await tell("jobs", "cancel", later.id);
  await tell("jobs", "create", echo, "--payload", '{"n":9007199254740993}', "--watch");
  const failed = await ask("jobs", "create", echo.replace("/echo", "/none"), "--max-attempts", "1");
  await tell("jobs", "watch", failed.id);
  await tell("jobs", "retry", failed.id);
  await jobwheel("jobs", "watch", failed.id);
  const { data } = await ask<{ data: { id: string }[] }>("runs", "list", "--job", failed.id);
  await tell("runs", "list", "--job", failed.id);
  await tell("runs", "get", data[0]?.id ?? "");
  await tell("runs", "retry", data[0]?.id ?? "");
  await tell("schedules", "apply", file, "--dry-run");
  await tell("schedules", "apply", file);
  await tell("schedules", "apply", file);
  writeFileSync(file, SCHEDULES.replace("TARGET", echo).replace("0 3", "0 4"));
  await tell("schedules", "apply", file);
  await tell("schedules", "list");
  const nightly = await tell("schedules", "get", "nightly");
  await tell("schedules", "preview", "--cron", "0 9 * * MON", "--timezone", "Asia/Tokyo", "--count", "2");
  for (const verb of ["pause", "resume", "run", "firings", "delete"])
    await tell("schedules", verb, nightly.id);
  const hook = await tell("webhooks", "create", "http://127.0.0.1:9/", "--event", "job.failed");
  await tell("webhooks", "list");
  await tell("webhooks", "test", hook.id);
  const isTried = ({ data }: { data: { status: string }[] }) => data[0]?.status === "failed";
  await until(async () => isTried(await ask("webhooks", "deliveries", hook.id)));
  await tell("webhooks", "deliveries", hook.id);
  await tell("webhooks", "delete", hook.id);
  await tell("project");
  await tell("usage");
  await tell("jobs", "get", "job_unknown");
  await tell("jobs", "list", "--status", "done");
  const found = steady(lines.join("\n"));
  if (process.env.WRITE_GOLDEN !== undefined) writeFileSync(GOLDEN, found);
  expect(found.split("\n")).toEqual(readFileSync(GOLDEN, "utf8").split("\n"));
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

describe("an exit code tells scripts", () => {
  test.each([
    [2, ["jobs", "fly"], "there is no command"],
    [2, ["jobs", "get"], "it takes JOB_ID"],
    [2, ["jobs", "create", "https://example.com/", "--payload", "[]"], "must be a JSON object"],
    [2, ["jobs", "list", "--profile", "other"], "run jobwheel login"],
    [1, ["jobs", "create", "nowhere"], "invalid_request"],
  ])("%i: %j", async (code, words, sentence) => {
    const ended = await jobwheel(...words);
    expect([ended.code, ended.said]).toEqual([code, ""]);
    expect(ended.complaint).toContain(sentence);
  });

  test("3: nobody answers", async () => {
    const command = ["node", PROGRAM, "project"];
    const away = { JOBWHEEL_URL: "http://127.0.0.1:1", JOBWHEEL_KEY: "svc_dev_x" };
    expect((await run(command, { ...environment, ...away })).code).toBe(3);
  });
});

describe("people see", () => {
  test("tabs in a pipe, without colours", async () => {
    const { said } = await jobwheel("jobs", "list", "--status", "succeeded", "--limit", "1");
    expect(said).toMatch(/^job_\w+\tsucceeded\t1\tus-east\t\S+\thttp:\S+\n$/);
  });

  // A machine without `script` has no pseudo-terminal to show it on.
  test.skipIf(Bun.which("script") === null)(
    "a table with colours on a terminal, and progress meanwhile",
    async () => {
      const command = `node ${PROGRAM} jobs list --status succeeded --limit 1; node ${PROGRAM} jobs create ${echo} --watch`;
      const { said } = await run(["script", "-qec", command, "/dev/null"], {
        ...environment,
        TERM: "xterm",
      });
      const [begin, end] = ["\u001b[", "\u001b[39m"];
      expect(said).toContain(`${begin}2mID`);
      expect(said).toContain(`${begin}32msucceeded${end}`);
      expect(said).toMatch(/job_\w+: waiting for its end/);
    },
  );
});
