import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { until } from "../flow/support.ts";

/** Longer than connecting may take, and shorter than the rescue of an attempt past its deadline. */
const FROZEN_MS = 11_000;

test("a node that is frozen while it connects sends nothing over the connection that it finds when it wakes", async () => {
  let connections = 0;
  let closed = 0;
  const received: string[] = [];
  const server = createServer((socket) => {
    connections++;
    socket.on("data", (chunk) => received.push(chunk.toString()));
    socket.on("close", () => closed++);
    socket.on("error", () => undefined);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "frozen-dial.ts"), String(port)], {
    stdout: "pipe",
    stderr: "inherit",
  });
  await until(() => stateOf(child.pid) === "T" && connections === 1);
  const frozenAt = performance.now();
  await until(() => performance.now() - frozenAt > FROZEN_MS);
  child.kill("SIGCONT");
  expect((await child.stdout.text()).trim()).toMatch(/^(stalled|faulted)$/);
  expect(await child.exited).toBe(0);
  await until(() => closed === 1);
  expect(received).toEqual([]);
  server.close();
});

/** The state of a process; T is stopped. */
const stateOf = (pid: number) => readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]?.[0];
