import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "../../flow/support.ts";
import { Random } from "../../simulation/cell/random.ts";
import { Api } from "./api.ts";
import { ChaosCell } from "./cell.ts";
import { Load } from "./load.ts";
import { Recording } from "./recording.ts";
import { Targets } from "./targets.ts";

setDefaultTimeout(300_000);

const JOB_EVERY_MS = 25;
/** An attempt's time begins with its claim, whose answer may have to wait for the new primary. */
const settings = { ATTEMPT_TIMEOUT_MS: "60000" };
const GOES_ON_WITHIN_MS = 15_000;
const IN_FLIGHT = 20;
const DRAINED_MS = 60_000;

let folder: string;
let cell: ChaosCell;
let targets: Targets;
let recording: Recording;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "promotion-"));
  recording = new Recording();
});
afterEach(async () => {
  await cell.stop();
  await targets.stop();
  rmSync(folder, { recursive: true, force: true });
});

const count = (kind: "request arrived" | "request left" | "job accepted") =>
  recording.events.filter((event) => event.kind === kind).length;

test.each([
  ["behind PgBouncer", true],
  ["without a pooler", false],
])(
  "the standby is promoted while work goes on, %s: nothing is lost, no attempt is cut, work goes on",
  async (_, isPooled) => {
    const members = { gateway: 2, worker: 2, delivery: 2 };
    cell = await ChaosCell.start({ folder, recording, members, isPooled, settings });
    const random = new Random(1, "promotion");
    targets = await Targets.start(recording, random);
    const { no, key, secret } = await cell.addProject({ concurrency: 200 });
    targets.secrets.set(`p${no}`, secret);
    const api = new Api(() => cell.bases, key, no, recording, random);
    const project = { no, api, weight: 1, schedules: [], endpoints: [], flows: [], parksAtHosts: false };
    const load = new Load([project], targets, recording, random);
    const timer = setInterval(() => load.create(project, "slow", 0), JOB_EVERY_MS);

    await until(() => count("request arrived") - count("request left") > IN_FLIGHT, DRAINED_MS);
    const wasInFlight = count("request arrived") - count("request left");
    expect(await cell.postgres.untilInSync()).toBe(true);
    const { fencedAt, promotedAt } = await cell.postgres.promote();
    await until(() => firstAfter("job accepted", promotedAt) !== undefined, GOES_ON_WITHIN_MS * 2);
    await until(() => firstAfter("request arrived", promotedAt) !== undefined, GOES_ON_WITHIN_MS * 2);
    await cell.postgres.addStandby();
    clearInterval(timer);
    await load.untilAnswered();
    await until(async () => (await one("SELECT count(*)::int AS count FROM open_jobs")) === 0, DRAINED_MS);

    const acceptedMs = (firstAfter("job accepted", promotedAt) ?? 0) - promotedAt;
    const sentMs = (firstAfter("request arrived", promotedAt) ?? 0) - promotedAt;
    console.log(
      `${load.acceptedCount} jobs, ${wasInFlight} on the wire; ${(promotedAt - fencedAt).toFixed(0)} ms without a primary; ` +
        `then the first job was accepted after ${acceptedMs.toFixed(0)} ms and the first sent after ${sentMs.toFixed(0)} ms`,
    );
    expect(Math.max(acceptedMs, sentMs)).toBeLessThan(GOES_ON_WITHIN_MS);
    // Every job was asked for until it was accepted, so each of them exists, and has succeeded at its first attempt.
    expect(load.acceptedCount).toBe(load.askedCount);
    expect(await one("SELECT count(*)::int AS count FROM jobs")).toBe(load.askedCount);
    expect(await cell.postgres.query("SELECT attempt, status, error FROM runs WHERE status <> 1")).toEqual(
      [],
    );
    expect(await one("SELECT count(*)::int AS count FROM ended_jobs WHERE status = 0 AND attempts = 1")).toBe(
      load.askedCount,
    );
    expect(count("request arrived")).toBe(load.askedCount);
    expect(await one("SELECT count(*)::int AS count FROM held_regions")).toBe(0);
    expect(recording.faults).toEqual([]);
  },
);

const firstAfter = (kind: "job accepted" | "request arrived", at: number) =>
  recording.events.find((event) => event.kind === kind && event.at > at)?.at;

async function one(text: string): Promise<number | undefined> {
  return (await cell.postgres.query<{ count: number }>(text))[0]?.count;
}
