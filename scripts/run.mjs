// The entry of every command: `node scripts/run.mjs <entry.ts> [arguments]`. It needs only Node 20 and npm: it installs the
// pinned Bun and the locked packages when they are missing, then hands over to Bun. Its own messages go to stderr, since
// stdout belongs to the command (`npm run --silent admin -- ... --json`).

import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  constants as access,
  accessSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
} from "node:fs";
import { homedir, constants as system } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const NPM_WATCH_MS = 500;

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const cache = join(root, ".cache");

const [entry, ...args] = process.argv.slice(2);
if (entry === undefined) fail("usage: node scripts/run.mjs <entry.ts> [arguments]");

const npm = process.ppid;
const tether = tetherCommand();
const bun = installBun();
installPackages(bun);
runCommand(bun, [resolve(root, entry), ...args]);

/**
 * Runs the command on this terminal and exits with its code. SIGTERM and SIGHUP reach only the launcher, which passes
 * them on. A terminal sends SIGINT to the whole group, so the command has it already and the launcher waits for its
 * end.
 */
function runCommand(command, commandArgs) {
  const [file, ...rest] = [...tether, command, ...commandArgs];
  const child = spawn(file, rest, { stdio: "inherit" });
  process.on("SIGTERM", () => child.kill("SIGTERM"));
  process.on("SIGHUP", () => child.kill("SIGHUP"));
  process.on("SIGINT", () => {});
  child.on("error", (error) => fail(`cannot start ${command}: ${error.message}`));
  child.on("exit", (code, signal) => process.exit(code ?? 128 + system.signals[signal]));

  // An npm that is killed with SIGKILL passes no signal on; its command would live on, holding ports and leases.
  if (process.env.npm_lifecycle_event !== undefined) {
    setInterval(() => process.ppid !== npm && child.kill("SIGTERM"), NPM_WATCH_MS).unref();
  }
}

/**
 * Answers the path of the pinned Bun, which it installs if it is missing. Each installation is made under a name of its
 * own and renamed once it is complete, so that launchers that start together, or die midway, never leave half of one.
 */
function installBun() {
  const pin = join(root, "scripts", "bun");
  const version = JSON.parse(readFileSync(join(pin, "package.json"), "utf8")).dependencies.bun;
  const home = join(cache, `bun-${version}-${process.platform}-${process.arch}`);
  const installed = findBun(home);
  if (installed !== undefined) return installed;

  say(`installing Bun ${version}`);
  mkdirSync(cache, { recursive: true });
  removeAbandoned(home);
  const partial = `${home}.partial-${process.pid}`;
  rmSync(partial, { recursive: true, force: true });
  mkdirSync(partial);
  for (const name of ["package.json", "package-lock.json"])
    copyFileSync(join(pin, name), join(partial, name));
  run("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--include=optional"], partial);
  if (findBun(partial) === undefined)
    fail(`there is no Bun ${version} for ${process.platform} ${process.arch}`);
  try {
    renameSync(partial, home);
  } catch {
    // Another launcher has installed it meanwhile.
    rmSync(partial, { recursive: true, force: true });
  }
  return findBun(home) ?? fail(`Bun could not be installed into ${home}`);
}

/** The Bun binary. npm installs only the platform package for this system, processor and C library. */
function findBun(home) {
  const scope = join(home, "node_modules", "@oven");
  const [platform] = existsSync(scope) ? readdirSync(scope).filter((name) => name.startsWith("bun-")) : [];
  if (platform === undefined) return undefined;
  const binary = join(scope, platform, "bin", "bun");
  return existsSync(binary) ? binary : undefined;
}

/** Removes the folders of launchers that were killed while they installed, a hundred megabytes each. */
function removeAbandoned(home) {
  for (const name of readdirSync(dirname(home))) {
    const pid = Number(name.split(".partial-")[1]);
    if (Number.isInteger(pid) && !existsProcess(pid)) {
      rmSync(join(dirname(home), name), { recursive: true, force: true });
    }
  }
}

function existsProcess(pid) {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return error.code === "EPERM";
  }
}

/** Brings node_modules to what the lock file says, unless the last installation was made from the same one. */
function installPackages(bunBinary) {
  const hash = createHash("sha256");
  for (const name of ["package.json", "bun.lock", "scripts/bun/package.json"])
    hash.update(readFileSync(join(root, name)));
  const wanted = hash.digest("hex");
  const stamp = join(root, "node_modules", ".install-stamp");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return;

  say("installing packages");
  run(bunBinary, [join(root, "scripts", "install.ts"), stamp, wanted], root);
}

/** The prefix that makes the kernel end a child when its launcher dies, however it dies. Only Linux has it. */
function tetherCommand() {
  const prefix = ["setpriv", "--pdeathsig", "KILL"];
  const works =
    process.platform === "linux" && spawnSync(prefix[0], [...prefix.slice(1), "true"]).status === 0;
  return works ? prefix : [];
}

/** Runs a step of the installation silently, and shows its output if it fails. */
function run(file, fileArgs, cwd) {
  const [command, ...rest] = [...tether, file, ...fileArgs];
  const done = spawnSync(command, rest, { cwd, env: installEnvironment(), encoding: "utf8" });
  if (done.error) fail(`cannot start ${file}: ${done.error.message}`);
  if (done.status !== 0) fail(`${file} ${fileArgs[0]} failed:\n${done.stdout}${done.stderr}`);
}

/** npm and Bun keep their downloads under the home folder. An account without one gets a cache here. */
function installEnvironment() {
  try {
    accessSync(homedir(), access.W_OK);
    return process.env;
  } catch {
    return {
      ...process.env,
      npm_config_cache: join(cache, "npm"),
      BUN_INSTALL_CACHE_DIR: join(cache, "packages"),
    };
  }
}

function say(text) {
  process.stderr.write(`jobwheel: ${text}\n`);
}

function fail(text) {
  say(text);
  process.exit(1);
}
