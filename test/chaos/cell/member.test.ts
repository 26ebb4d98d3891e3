import { afterAll, expect, test } from "bun:test";
import { appendFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ServiceProcess } from "../../support/service-process.ts";
import type { TcpProxy } from "../../support/tcp-proxy.ts";
import { Member } from "./member.ts";
import { Recording } from "./recording.ts";

const folder = mkdtempSync(join(tmpdir(), "member-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** A member whose process is not real: the test ends it, and says when the supervisor's wait is over. */
function startMember(name: string) {
  const recording = new Recording();
  let startCount = 0;
  let ended = Promise.withResolvers<number | null>();
  const waits: (() => void)[] = [];
  const service = {
    ...{ port: 1, opsPort: 2, pid: 3, output: "" },
    get ended() {
      return ended.promise;
    },
    async end() {
      ended.resolve(null);
      return null;
    },
    async startAgain() {
      startCount++;
      ended = Promise.withResolvers();
    },
  } satisfies ServiceProcess;
  const member = new Member(
    "worker",
    name,
    {},
    {} as { postgres: TcpProxy; nats: TcpProxy },
    recording,
    folder,
    {
      async startService() {
        startCount++;
        return service;
      },
      wait: () => new Promise((resolve) => waits.push(resolve)),
    },
  );
  return {
    member,
    recording,
    get startCount() {
      return startCount;
    },
    async endProcess(code: number) {
      ended.resolve(code);
      while (waits.length === 0) await turn();
    },
    async endWait() {
      for (const resolve of waits.splice(0)) resolve();
      for (let turns = 0; turns < 10; turns++) await turn();
    },
  };
}
const turn = () => new Promise((resolve) => setImmediate(resolve));

test("a process that ends by itself is started again once, although it is killed and started before that", async () => {
  const cell = startMember("restarted");
  await cell.member.start();
  await cell.endProcess(2);
  await cell.member.kill();
  await cell.member.start();
  expect(cell.startCount).toBe(2);
  await cell.endWait();
  expect(cell.startCount).toBe(2);
  await cell.endProcess(2);
  await cell.endWait();
  expect(cell.startCount).toBe(3);
  await cell.member.kill();
});

test("an end is excused by the log of the process that ended alone", async () => {
  const cell = startMember("excused");
  await cell.member.start();
  appendFileSync(cell.member.log, "this node was declared dead\n");
  await cell.endProcess(1);
  expect(cell.recording.faults).toEqual([]);
  await cell.endWait();
  await cell.endProcess(1);
  expect(cell.recording.counts.get("declared dead")).toBe(1);
  expect(cell.recording.faults).toEqual(["excused ended by itself with 1:\n"]);
  await cell.member.kill();
});
