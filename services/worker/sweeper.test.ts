import { expect, test } from "bun:test";
import { idToUuid } from "../../shared/domain/ids.ts";
import type { OwedAttempt } from "../../shared/domain/owed.ts";
import { flowClassCode, regionCode } from "../../shared/store/database/codes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { Sweeper } from "./sweeper.ts";
import { newJobId, owedOf, startShard } from "./test-support.ts";

const NOW = 1_000_000;

/** A Postgres that owes these attempts, and a sweeper that asks it. `asked` has the questions about remembered lanes, by statement. */
function startSweeper(owed: readonly OwedAttempt[], clock = { now: NOW }) {
  const asked: { projectNo: number; sinceAt: number }[][] = [];
  let isFailing = false;
  const run = async (name: string, _text: string, values: string[]) => {
    const sweptAt = { id: null, due_at: clock.now };
    if (name !== "refill") return [sweptAt];
    const [projects = [], , , sinces = [], rooms = []] = values.map((value) =>
      typeof value === "string" ? value.slice(1, -1).split(",") : [],
    );
    const questions = projects.map((projectNo, index) => {
      const since = sinces[index] ?? "";
      const sinceAt = since === "-infinity" ? Number.NEGATIVE_INFINITY : Date.parse(JSON.parse(since));
      return { projectNo: Number(projectNo), sinceAt, room: Number(rooms[index]) };
    });
    asked.push(questions);
    if (isFailing) throw new Error("no answer");
    const found = questions.flatMap(({ projectNo, sinceAt, room }) =>
      owed
        .filter(
          (one) => one.projectNo === projectNo && one.dueAt >= sinceAt && one.dueAt <= clock.now + 1_500,
        )
        .slice(0, room)
        .map(({ id, attempt, dueAt }) => ({
          ...{ project_no: projectNo, flow_class: flowClassCode("production jobs") },
          ...{ region: regionCode("us-east"), shard: 3, id: idToUuid(id), attempt, due_at: dueAt },
          ...{ concurrency: 500, is_keyed: false },
        })),
    );
    return [...found, sweptAt];
  };
  const database = { run } as unknown as Database;
  const sweeper = new Sweeper(database, { now: () => clock.now, stop: () => undefined });
  const fail = (now: boolean) => {
    isFailing = now;
  };
  return { sweeper, asked, fail, questions: () => asked.splice(0).flat() };
}

test("a sweep asks about each remembered lane once, some hundred lanes in a statement", async () => {
  const LANES = 450;
  const { shard, lane } = startShard(NOW);
  for (let projectNo = 1; projectNo <= LANES; projectNo++)
    shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
  const untold = owedOf({ projectNo: LANES, id: newJobId(), dueAt: NOW });
  const { sweeper, asked } = startSweeper([untold]);

  expect(await sweeper.sweep([shard])).toBe(1);
  expect(asked.map(({ length }) => length)).toEqual([200, 200, 50]);
  expect(new Set(asked.flat().map(({ projectNo }) => projectNo)).size).toBe(LANES);
  expect(lane(untold.projectNo)?.find(untold.id)?.state).toBe("ready");
});

test("if many entries are known, lanes take turns in having theirs read again; what comes next is found all the same", async () => {
  const [LANES, OF_EACH] = [30, 400];
  const clock = { now: NOW };
  const { shard, lane } = startShard(NOW);
  const owed: OwedAttempt[] = [];
  for (let projectNo = 1; projectNo <= LANES; projectNo++)
    for (let n = 0; n < OF_EACH; n++) owed.push(owedOf({ projectNo, dueAt: NOW + 1_000 }));
  const { sweeper, questions } = startSweeper(owed, clock);
  for (const one of owed) shard.learn(one, NOW);

  // The first look tells the limits of the projects, and the second one reads all of each lane.
  for (let look = 0; look < 2; look++) {
    expect(await sweeper.sweep([shard])).toBe(0);
    expect(questions().filter(({ sinceAt }) => sinceAt < NOW)).toHaveLength(LANES);
  }

  const late = owedOf({ projectNo: LANES, dueAt: NOW + 500 });
  const next = owedOf({ projectNo: LANES, dueAt: NOW + 1_900 });
  owed.push(late, next);
  const readAgain: number[] = [];
  const foundIn: Record<string, number> = {};
  for (let sweep = 1; sweep <= 3; sweep++) {
    clock.now += 500;
    await sweeper.sweep([shard]);
    const whole = questions().filter(({ sinceAt }) => sinceAt < NOW + 1_000);
    expect(whole.length * OF_EACH).toBeLessThanOrEqual(5_000);
    readAgain.push(...whole.map(({ projectNo }) => projectNo));
    for (const [name, { id }] of Object.entries({ late, next }))
      if (lane(LANES)?.find(id) !== undefined) foundIn[name] ??= sweep;
  }
  expect(new Set(readAgain).size).toBe(LANES);
  expect(foundIn).toEqual({ next: 1, late: 3 });
});

test("a lane of which something was lost is read again at once, however many entries are known", async () => {
  const [LANES, OF_EACH] = [30, 400];
  const clock = { now: NOW };
  const { shard, lane, send } = startShard(NOW);
  const owed: OwedAttempt[] = [];
  for (let projectNo = 1; projectNo <= LANES; projectNo++)
    for (let n = 0; n < OF_EACH; n++) owed.push(owedOf({ projectNo, dueAt: NOW + 60_000 }));
  const lost = owedOf({ projectNo: LANES, dueAt: NOW });
  const { sweeper, questions } = startSweeper([...owed, lost], clock);
  for (const one of [...owed, lost]) shard.learn(one, NOW);
  await sweeper.sweep([shard]);
  send(NOW);
  clock.now += 10_000;
  // The claim was not answered in time.
  shard.tidy(clock.now);
  expect(lane(LANES)?.find(lost.id)).toBeUndefined();
  questions();
  await sweeper.sweep([shard]);
  expect(questions().find(({ projectNo }) => projectNo === LANES)?.sinceAt).toBeLessThanOrEqual(NOW);
  expect(lane(LANES)?.find(lost.id)?.state).toBe("ready");
});

test("a lane whose question was not answered is read as a whole by the next sweep", async () => {
  const clock = { now: NOW };
  const { shard } = startShard(NOW);
  const owed = Array.from({ length: 20 }, (_, n) =>
    Array.from({ length: 400 }, () => owedOf({ projectNo: n + 1, dueAt: NOW + 1_000 })),
  ).flat();
  const { sweeper, questions, fail } = startSweeper(owed, clock);
  for (const one of owed) shard.learn(one, NOW);
  for (let look = 0; look < 3; look++) await sweeper.sweep([shard]);
  questions();
  await sweeper.sweep([shard]);
  expect(questions().some(({ sinceAt }) => sinceAt > NOW)).toBe(true);
  fail(true);
  await expect(sweeper.sweep([shard])).rejects.toThrow("no answer");
  fail(false);
  questions();
  await sweeper.sweep([shard]);
  expect(questions().every(({ sinceAt }) => sinceAt < NOW)).toBe(true);
});

test("a lane that is blocked takes no turn", async () => {
  const [LANES, BLOCKED, OF_EACH] = [30, 20, 400];
  const clock = { now: NOW };
  const { shard, lane } = startShard(NOW);
  const owed = Array.from({ length: LANES }, (_, n) =>
    Array.from({ length: OF_EACH }, () => owedOf({ projectNo: n + 1, dueAt: NOW + 1_000 })),
  ).flat();
  const { sweeper, questions } = startSweeper(owed, clock);
  for (const one of owed) shard.learn(one, NOW);
  for (let look = 0; look < 3; look++) await sweeper.sweep([shard]);
  for (let projectNo = 1; projectNo <= BLOCKED; projectNo++) lane(projectNo)?.block(NOW + 60_000, null);
  for (let look = 0; look < 3; look++) {
    questions();
    await sweeper.sweep([shard]);
    const whole = questions().filter(({ sinceAt }) => sinceAt < NOW);
    expect(whole.map(({ projectNo }) => projectNo)).toEqual(
      Array.from({ length: LANES - BLOCKED }, (_, n) => BLOCKED + 1 + n),
    );
  }
});
