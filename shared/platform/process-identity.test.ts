import { afterEach, describe, expect, test } from "bun:test";
import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { describeThisProcess, isProvedDead } from "./process-identity.ts";

const MODULE = JSON.stringify(join(import.meta.dir, "process-identity.ts"));
const POLLS_MAX = 2_000;
const children: ChildProcess[] = [];
afterEach(() => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
});

/** A process that prints its description and lives on. `command` runs Bun in it. */
async function startChild(command: string[] = []) {
  const source = `import { describeThisProcess } from ${MODULE};
    console.log(describeThisProcess()); setInterval(() => {}, 1_000);`;
  const [file = "", ...args] = [...command, process.execPath, "-e", source];
  const child = spawn(file, args, { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  const lines = createInterface({ input: child.stdout });
  for await (const line of lines) return { child, description: line };
  throw new Error("the child said nothing");
}

function stateOf(pid: number): string {
  return /\) (\S)/.exec(readFileSync(`/proc/${pid}/stat`, "utf8"))?.[1] ?? "";
}

async function until(holds: () => boolean): Promise<void> {
  for (let poll = 0; poll < POLLS_MAX; poll++) {
    if (holds()) return;
    await Bun.sleep(5);
  }
  throw new Error("it did not come true");
}

async function killed(child: ChildProcess): Promise<void> {
  const exited = Promise.withResolvers<void>();
  child.once("exit", () => exited.resolve());
  child.kill("SIGKILL");
  await exited.promise;
}

describe("a process's description", () => {
  test("is the same each time and differs between processes", async () => {
    expect(describeThisProcess()).toBe(describeThisProcess());
    const [one, other] = await Promise.all([startChild(), startChild()]);
    expect(new Set([describeThisProcess(), one.description, other.description]).size).toBe(3);
  });
});

describe("death", () => {
  test("is proved of a process that was killed, and not before", async () => {
    const { child, description } = await startChild();
    expect(isProvedDead(description)).toBe(false);
    await killed(child);
    expect(isProvedDead(description)).toBe(true);
  });

  test("is not proved of a frozen process, which still holds its connections", async () => {
    const { child, description } = await startChild();
    child.kill("SIGSTOP");
    await until(() => stateOf(child.pid ?? 0) === "T");
    expect(isProvedDead(description)).toBe(false);
    await killed(child);
    expect(isProvedDead(description)).toBe(true);
  });

  test("is not proved of a frozen process of one thread either", async () => {
    const child = spawn("sleep", ["1000"]);
    children.push(child);
    child.kill("SIGSTOP");
    await until(() => stateOf(child.pid ?? 0) === "T");
    const startTicks = readFileSync(`/proc/${child.pid}/stat`, "utf8").split(" ")[21];
    const place = describeThisProcess().split(" ").slice(0, 2).join(" ");
    expect(isProvedDead(`${place} ${child.pid} ${startTicks}`)).toBe(false);
    await killed(child);
    expect(isProvedDead(`${place} ${child.pid} ${startTicks}`)).toBe(true);
  });

  test("is proved of a zombie, whose parent has not waited for it", async () => {
    // The shell turns into a sleep, which never waits for the shell's child.
    const { description } = await startChild(["sh", "-c", `"$@" & exec sleep 1000`, "sh"]);
    const pid = Number(description.split(" ").at(-2));
    expect(isProvedDead(description)).toBe(false);
    process.kill(pid, "SIGKILL");
    await until(() => stateOf(pid) === "Z");
    await until(() => isProvedDead(description));
  });

  test("is not proved of this process itself", () => {
    expect(isProvedDead(describeThisProcess())).toBe(false);
  });

  test("is proved if the pid belongs to a later process", () => {
    const [boot, namespace, pid, start] = describeThisProcess().split(" ");
    expect(isProvedDead(`${boot} ${namespace} ${pid} ${Number(start) - 1}`)).toBe(true);
  });

  test("is never proved of a process of another machine, boot or namespace, nor without a description", async () => {
    const { child, description } = await startChild();
    await killed(child);
    const [boot, namespace, pid, start] = description.split(" ");
    expect(isProvedDead(description)).toBe(true);
    const unknown = [
      `00000000-0000-4000-8000-000000000000 ${namespace} ${pid} ${start}`,
      `${boot} pid:[1] ${pid} ${start}`,
      `${boot} ${namespace} 0 ${start}`,
      `${boot} ${namespace} -1 ${start}`,
      `${boot} ${namespace} ${pid}`,
      `${boot} ${namespace} ${pid} ${start} more`,
      `pid ${pid}`,
      "",
    ];
    for (const text of unknown) expect(isProvedDead(text)).toBe(false);
  });

  test.skipIf(process.getuid?.() !== 0)(
    "is not proved of a living process in a pid namespace of its own",
    async () => {
      const { description } = await startChild([
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
      ]);
      expect(description).toMatch(/pid:\[\d+\] 1 \d+$/);
      expect(description.split(" ")[1]).not.toBe(describeThisProcess().split(" ")[1] ?? "");
      expect(isProvedDead(description)).toBe(false);
    },
  );
});
