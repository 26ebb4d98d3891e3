import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmodSync, chownSync, cpSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeKey } from "../../shared/domain/key.ts";
import { until } from "../flow/support.ts";
import { claimPort } from "../support/port.ts";
import { fetchServed } from "../support/served.ts";
import { startTarget } from "../support/target.ts";
import { layOut, readImage } from "./image.ts";

/**
 * The image that runs everything, as far as it can be followed without an engine for containers: its files, the commands that build
 * it, its environment, its entry point and its health check. If the test runs as root, the image runs as an account that may write
 * only to the volume. Its base image is this machine.
 */
setDefaultTimeout(400_000);

/** The first start makes a cluster of Postgres and runs all migrations. */
const READY_MS_MAX = 150_000;

/** The account in place of the container's account 1000, which a machine may lack. */
const NOBODY = 65_534;
const OPS_PORT_OF_IMAGE = "127.0.0.1:9090";

const image = readImage("standalone");
const folder = mkdtempSync(join(tmpdir(), "standalone-image-"));
const [app, data, bun] = [join(folder, "app"), join(folder, "data"), join(folder, "bin/bun")];
const target = startTarget(() => new Response(""));
const givenKey = makeKey("development", randomBytes);
let environment: Record<string, string>;

beforeAll(async () => {
  // The image's files are copied to a folder that every account may read; the checkout may be readable by root alone.
  chmodSync(folder, 0o755);
  layOut(image, app);
  rmSync(join(app, "node_modules"));
  cpSync(join(import.meta.dir, "../../bun.lock"), join(app, "bun.lock"));
  mkdirSync(join(folder, "bin"));
  cpSync(process.execPath, bun);
  mkdirSync(data, { mode: 0o700 });
  if (process.getuid?.() === 0) chownSync(data, NOBODY, NOBODY);
  environment = {
    ...image.environment,
    PATH: `${join(folder, "bin")}:${process.env.PATH}`,
    DATA_DIR: data,
    // Only an engine for containers makes the laptop's name known.
    ALLOWED_TARGET_HOSTS: "localhost",
    PORT: String(await claimPort()),
    OPS_PORT: String(await claimPort()),
    DEVELOPMENT_KEY: givenKey,
  };
});
afterAll(async () => {
  await target.stop();
  rmSync(folder, { recursive: true, force: true });
});

test("is built by its commands, and is healthy, delivers and stops as an account without rights", async () => {
  const commands = image.commands.filter((command) => command.startsWith("bun "));
  expect(commands).toHaveLength(2);
  for (const command of commands) {
    const { status, stderr } = spawnSync("sh", ["-c", command], {
      cwd: app,
      env: { PATH: environment.PATH, HOME: process.env.HOME },
    });
    expect([command, status, status === 0 ? "" : stderr.toString()]).toEqual([command, 0, ""]);
  }

  let container = start();
  await until(() => container.output.includes("Jobwheel answers"), READY_MS_MAX);
  expect(await checkHealth()).toBe(0);
  expect(container.output).toContain("development  $DEVELOPMENT_KEY\n");
  expect(container.output).not.toContain(givenKey);
  expect(container.output).toMatch(/production {3}svc_live_\w{38}\n/);
  expect(container.output).toContain(
    "docker exec CONTAINER bun services/admin/main.ts key create --project prj_",
  );

  const port = new URL(target.url).port;
  const answers = await Promise.all(
    [`http://localhost:${port}/`, `http://127.0.0.1:${port}/`].map((target_url) =>
      fetchServed(`http://127.0.0.1:${environment.PORT}/v2/jobs`, {
        method: "POST",
        headers: { authorization: `Bearer ${givenKey}`, "content-type": "application/json" },
        body: JSON.stringify({ target_url }),
      }),
    ),
  );
  expect(answers.map(({ status }) => status)).toEqual([201, 400]);
  await target.until((arrivals) => arrivals.length === 1);

  container.process.kill("SIGTERM");
  expect(await container.ended).toBe(0);
  expect(await checkHealth()).toBe(1);

  // The second container keeps only the volume of the first one.
  container = start();
  await until(() => container.output.includes("Jobwheel answers"), READY_MS_MAX);
  expect(container.output).not.toContain("Created project");
  container.process.kill("SIGTERM");
  expect(await container.ended).toBe(0);
});

test("has a name for the laptop, which is all that it opens", () => {
  expect(image.environment).toMatchObject({ HOST: "0.0.0.0", ALLOWED_TARGET_HOSTS: "host.docker.internal" });
  expect(image.environment).not.toHaveProperty("ALLOW_INSECURE_TARGETS");
  expect([image.entrypoint[0], image.healthCheck[0]]).toEqual(["/usr/local/bin/bun", "/usr/local/bin/bun"]);
});

/** Runs words of the image, whose first word is its Bun. Root runs them as an account without rights. */
function launch(words: readonly string[]) {
  const confinement = [
    "setpriv",
    "--reuid",
    `${NOBODY}`,
    "--regid",
    `${NOBODY}`,
    "--clear-groups",
    "--no-new-privs",
  ];
  const [file = "", ...args] = [
    ...(process.getuid?.() === 0 ? [...confinement, "--pdeathsig", "KILL"] : []),
    ...[bun, ...words.slice(1)],
  ];
  return spawn(file, args, { cwd: app, env: environment, stdio: ["ignore", "pipe", "ignore"] });
}

function start() {
  const child = launch(image.entrypoint);
  let output = "";
  child.stdout.on("data", (chunk) => (output += chunk));
  return {
    get output() {
      return output;
    },
    process: child,
    ended: new Promise<number | null>((end) => child.on("close", end)),
  };
}

function checkHealth(): Promise<number | null> {
  const words = image.healthCheck.map((word) =>
    word.replace(OPS_PORT_OF_IMAGE, `127.0.0.1:${environment.OPS_PORT}`),
  );
  expect(words).not.toEqual(image.healthCheck);
  return new Promise((end) => launch(words).on("close", end));
}
