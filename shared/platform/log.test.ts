import { expect, test } from "bun:test";

const PROGRAM = `
  import { createLog } from "./log.ts";
  const log = createLog({ level: "info", name: "test" });
  log.info({ place: 1 }, "alone");
  log.together(() => {
    log.info({ place: 2 }, "together");
    log.debug({ place: 0 }, "below the level");
    log.warn({ place: 3, err: new Error("broken") }, "together");
  });
  try {
    log.together(() => {
      log.info({ place: 4 }, "before an error");
      throw new Error("broken");
    });
  } catch {
    log.info({ place: 5 }, "behind it");
  }
  log.together(() => log.error({ place: 6 }, "the last words"));
  process.kill(process.pid, "SIGKILL");
`;

test("lines come in order and whole, also those of a process that dies behind them", async () => {
  const child = Bun.spawn([process.execPath, "-e", PROGRAM], { cwd: import.meta.dir, stdout: "pipe" });
  const text = await new Response(child.stdout).text();
  const lines = text
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
  expect(lines.map(({ place, level, name }) => [place, level, name])).toEqual(
    [30, 30, 40, 30, 30, 50].map((level, index) => [index + 1, level, "test"]),
  );
  expect(lines[2].err.message).toBe("broken");
});
