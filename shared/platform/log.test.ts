import { expect, test } from "bun:test";
import { runInTerminal } from "../../test/support/terminal.ts";

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

/** The log of a program with this format, once where its output goes to a terminal and once where it does not. */
async function logWith(format: string, environment: Record<string, string> = {}) {
  const program = `
    import { createLog } from ${JSON.stringify(`${import.meta.dir}/log.ts`)};
    const log = createLog({ level: "info", name: "test", format: ${format} });
    log.info({ place: 1 }, "alone");
    log.together(() => [2, 3].forEach((place) => log.info({ place }, "together")));
    process.kill(process.pid, "SIGKILL");`;
  const command = [process.execPath, "-e", program];
  const terminal = runInTerminal(command, environment);
  await terminal.ended;
  const child = Bun.spawn(command, { env: environment, stdout: "pipe" });
  return { terminal: terminal.text, pipe: await new Response(child.stdout).text() };
}

const JSON_LINES = /^(\{"level":30,.*"place":\d,"msg":"\w+"\}\n){3}$/;
const HUMAN_LINES = /^(\d\d:\d\d:\d\d\.\d{3}Z INFO {2}\w+ place=\d\n){3}$/;

test("by itself a log is for a person on a terminal, in colours, and for a program elsewhere", async () => {
  const { terminal, pipe } = await logWith("null");
  expect(pipe).toMatch(JSON_LINES);
  expect(terminal).toContain("\u001b[32mINFO ");
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the colours begin with one.
  expect(terminal.replaceAll(/\u001b\[[0-9]+m/g, "")).toMatch(HUMAN_LINES);
});

test("NO_COLOR leaves the colours out", async () => {
  expect((await logWith("null", { NO_COLOR: "1" })).terminal).toMatch(HUMAN_LINES);
});

test("a format that is given holds everywhere, and colours are for terminals", async () => {
  const json = await logWith('"json"');
  expect([json.terminal, json.pipe]).toEqual([
    expect.stringMatching(JSON_LINES),
    expect.stringMatching(JSON_LINES),
  ]);
  const human = await logWith('"human"');
  expect(human.terminal).toContain("\u001b[");
  expect(human.pipe).toMatch(HUMAN_LINES);
});
