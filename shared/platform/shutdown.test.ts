import { describe, expect, test } from "bun:test";
import { join } from "node:path";

/** Runs a process that handles signals as services do, up to the line "ready" in its output. */
async function startChild(source: string, drainTimeoutMs = 10_000) {
  const child = Bun.spawn(
    [
      process.execPath,
      "-e",
      `import { handleSignals } from ${JSON.stringify(join(import.meta.dir, "shutdown.ts"))};
       import { createLog } from ${JSON.stringify(join(import.meta.dir, "log.ts"))};
       const log = createLog({ level: "info", name: "child" });
       const shutdown = handleSignals({ log, drainTimeoutMs: ${drainTimeoutMs} });
       setInterval(() => {}, 1_000);
       ${source}
       console.log("ready");`,
    ],
    { stdout: "pipe", stderr: "inherit" },
  );
  const reader = child.stdout.pipeThrough(new TextDecoderStream()).getReader();
  let output = "";
  const readUntil = async (word: string | null): Promise<string> => {
    while (word === null || !output.includes(word)) {
      const { done, value } = await reader.read();
      if (done) break;
      output += value;
    }
    return output;
  };
  await readUntil("ready");
  return { child, readUntil, readAll: () => readUntil(null) };
}

const stopIn = (name: string) => `shutdown.add("${name}", async () => console.log("stop ${name}"));`;

describe("a signal", () => {
  test.each(["SIGTERM", "SIGINT"] as const)(
    "%s runs the stops in order, once, and exits with 0",
    async (signal) => {
      const { child, readUntil, readAll } = await startChild(`
      shutdown.add("first", async () => {
        const told = new Promise((resolve) => process.once("SIGUSR2", resolve));
        console.log("begun", shutdown.begun);
        await told;
        console.log("stop first");
      });
      ${stopIn("second")} ${stopIn("third")}`);
      child.kill(signal);
      await readUntil("begun true");
      child.kill("SIGTERM");
      child.kill("SIGUSR2");
      const output = await readAll();
      expect(await child.exited).toBe(0);
      expect(output.match(/stop \w+/g)).toEqual(["stop first", "stop second", "stop third"]);
      expect(output).toContain('"msg":"stopped"');
    },
  );

  test("SIGINT, given again, exits at once with 130", async () => {
    const { child, readUntil, readAll } = await startChild(
      `shutdown.add("hanging", () => { console.log("hanging"); return new Promise(() => {}); }); ${stopIn("second")}`,
    );
    child.kill("SIGTERM");
    await readUntil("\nhanging");
    child.kill("SIGINT");
    expect(await readAll()).not.toContain("stop second");
    expect(await child.exited).toBe(130);
  });

  test("also stops a part that was still starting when it came", async () => {
    const { child, readAll } = await startChild(`shutdown.add("first", async () => { ${stopIn("late")} });`);
    child.kill("SIGTERM");
    expect(await readAll()).toContain("stop late");
    expect(await child.exited).toBe(0);
  });

  test("runs the remaining stops if one fails, and exits with 1", async () => {
    const { child, readAll } = await startChild(
      `shutdown.add("broken", async () => { throw new Error("cannot stop"); }); ${stopIn("second")}`,
    );
    child.kill("SIGTERM");
    const output = await readAll();
    expect(output).toContain("cannot stop");
    expect(output).toContain("stop second");
    expect(await child.exited).toBe(1);
  });

  test("ends a process that does not stop in time, and says what hung", async () => {
    const { child, readAll } = await startChild(
      `shutdown.add("hanging", () => new Promise(() => {}));`,
      -10_000,
    );
    child.kill("SIGTERM");
    expect(await readAll()).toContain('"stopping":"hanging","msg":"not stopped in time"');
    expect(await child.exited).toBe(1);
  });
});

describe("an uncaught exception", () => {
  test.each([
    ["uncaughtException", `throw new Error("a bug", { cause: new Error("its cause") })`],
    ["unhandledRejection", `Promise.reject(new Error("a bug", { cause: new Error("its cause") }))`],
  ])("%s is logged whole and ends the process with 1", async (event, act) => {
    const { child, readAll } = await startChild(`process.once("SIGUSR2", () => { ${act}; });`);
    child.kill("SIGUSR2");
    const output = await readAll();
    expect(output).toContain(`"msg":"${event}"`);
    expect(output).toContain("a bug");
    expect(output).toContain("its cause");
    expect(output).toContain('"stack":');
    expect(await child.exited).toBe(1);
  });
});
