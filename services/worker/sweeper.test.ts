import { expect, test } from "bun:test";
import { idToUuid } from "../../shared/domain/ids.ts";
import type { OwedAttempt } from "../../shared/domain/owed.ts";
import { flowClassCode, regionCode } from "../../shared/store/database/codes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { SWEEP_LAG_MS } from "../../shared/store/queue/sweep.ts";
import { Sweeper } from "./sweeper.ts";
import { owedOf, SHARD, startShard } from "./test-support.ts";

const NOW = 1_000_000;
/** Projects from this one on are in another shard. */
const OTHER_SHARD_FROM = 500;
const OTHER_SHARD = 5;
const shardOfTest = (projectNo: number) => (projectNo < OTHER_SHARD_FROM ? SHARD : OTHER_SHARD);

/**
 * A Postgres with the lanes of some projects, which owes these attempts, and a sweeper that asks it. `asked` has the questions about
 * lanes that are asked apart, by statement. `questions` takes those, and the lanes that sweeps have read.
 */
function startSweeper(owed: readonly OwedAttempt[], clock = { now: NOW }, projectCount = 30) {
  interface Question {
    projectNo: number;
    sinceAt: number;
    room: number;
  }
  const asked: Question[][] = [];
  const sweptLanes: Question[] = [];
  const failing = new Set<string>();
  const holding = new Map<string, Promise<void>>();
  const run = async (name: string, _text: string, values: string[]) => {
    const lists = values.map((value) => (typeof value === "string" ? value.slice(1, -1).split(",") : []));
    const instantOf = (text = "") =>
      text === "-infinity" ? Number.NEGATIVE_INFINITY : Date.parse(JSON.parse(text));
    const [first = [], shards = [], lastShards = [], sinces = [], others = []] = lists;
    let questions: Question[];
    if (name === "refill") {
      questions = first.map((projectNo, index) => ({
        ...{ projectNo: Number(projectNo), sinceAt: instantOf(sinces[index]), room: Number(others[index]) },
      }));
      asked.push(questions);
    } else {
      const projects = Array.from({ length: projectCount }, (_, index) => index + 1);
      questions = projects
        .filter((projectNo) => !others.includes(String(projectNo)))
        .flatMap((projectNo) => {
          const range = shards.findIndex(
            (from, index) =>
              Number(from) <= shardOfTest(projectNo) && shardOfTest(projectNo) <= Number(lastShards[index]),
          );
          return range < 0 ? [] : [{ projectNo, sinceAt: instantOf(sinces[range]), room: 1_000 }];
        });
      sweptLanes.push(...questions);
    }
    await holding.get(name);
    if (failing.has(name)) throw new Error("no answer");
    const found = questions.flatMap(({ projectNo, sinceAt, room }) =>
      owed
        .filter(
          (one) => one.projectNo === projectNo && one.dueAt >= sinceAt && one.dueAt <= clock.now + 1_500,
        )
        .toSorted((one, other) => one.dueAt - other.dueAt)
        .slice(0, room)
        .map(({ id, attempt, dueAt }) => ({
          ...{ project_no: projectNo, flow_class: flowClassCode("production jobs") },
          ...{
            region: regionCode("us-east"),
            shard: shardOfTest(projectNo),
            id: idToUuid(id),
            attempt,
            due_at: dueAt,
          },
          ...{ concurrency: 500, key_hash: null },
        })),
    );
    return [...found, { id: null, due_at: clock.now }];
  };
  const database = { run } as unknown as Database;
  const sweeper = new Sweeper(database, { now: () => clock.now, stop: () => undefined });
  const questions = () => [...asked.splice(0).flat(), ...sweptLanes.splice(0)];
  /** Holds the statement of this name until the answered function is called. */
  function hold(name: string): () => void {
    const { promise, resolve } = Promise.withResolvers<void>();
    holding.set(name, promise);
    return resolve;
  }
  return { sweeper, asked, failing, hold, questions };
}

test("small lanes of which all is known are read along with the forgotten ones, and none is asked apart", async () => {
  const LANES = 450;
  const { shard, lane } = startShard(NOW);
  const clock = { now: NOW };
  const owed: OwedAttempt[] = [];
  const { sweeper, asked, questions } = startSweeper(owed, clock, LANES);
  await sweeper.sweep([shard]);
  for (let projectNo = 1; projectNo <= LANES; projectNo++)
    shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
  for (let sweep = 0; sweep < 20; sweep++) {
    clock.now += 1_000;
    owed.splice(0, owed.length, owedOf({ projectNo: sweep + 1, dueAt: clock.now + 500 }));
    questions();
    await sweeper.sweep([shard]);
    expect(asked).toEqual([]);
    const found = questions();
    expect(found).toHaveLength(LANES);
    // The mark moves on, so that index entries of ended jobs are not read again.
    expect(found[0]?.sinceAt).toBe(clock.now - 1_000 - SWEEP_LAG_MS);
  }
  expect(lane(LANES)?.size).toBe(1);
});

test("an attempt of which no message told is found in a lane that is read with the forgotten ones", async () => {
  const { shard, lane } = startShard(NOW);
  shard.learn(owedOf({ dueAt: NOW + 60_000 }), NOW);
  const untold = owedOf({ dueAt: NOW });
  const { sweeper, asked } = startSweeper([untold]);
  expect(await sweeper.sweep([shard])).toBe(1);
  expect(asked).toEqual([]);
  expect(lane()?.find(untold.id)?.state).toBe("ready");
});

test("a lane is asked apart if Postgres may have more for it, it lacks something older, or an entry was put off in it", async () => {
  const clock = { now: NOW };
  const { shard, lane, send, answer } = startShard(NOW);
  const { sweeper, asked } = startSweeper([], clock);
  await sweeper.sweep([shard]);
  for (let projectNo = 1; projectNo <= 4; projectNo++)
    shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
  lane(1)?.overflow();
  lane(2)?.lookFrom(NOW - 60_000);
  shard.learn(owedOf({ projectNo: 3, dueAt: NOW }), NOW);
  for (const entry of send(NOW))
    if (entry.projectNo === 3) answer(entry, { kind: "early", waitMs: 30_000 }, NOW);
  await sweeper.sweep([shard]);
  expect(asked.flat().map(({ projectNo }) => projectNo)).toEqual([1, 2, 3]);
});

test("lanes that a sweep must ask apart share statements, 200 to each", async () => {
  const LANES = 450;
  const { shard, lane } = startShard(NOW);
  for (let projectNo = 1; projectNo <= LANES; projectNo++) {
    shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
    lane(projectNo)?.overflow();
  }
  const untold = owedOf({ projectNo: LANES, dueAt: NOW });
  const { sweeper, asked } = startSweeper([untold]);

  expect(await sweeper.sweep([shard])).toBe(1);
  expect(asked.map(({ length }) => length)).toEqual([200, 200, 50]);
  expect(new Set(asked.flat().map(({ projectNo }) => projectNo)).size).toBe(LANES);
  expect(lane(untold.projectNo)?.find(untold.id)?.state).toBe("ready");
});

test("about 2,000 lanes and entries that are due soon are read with the forgotten lanes", async () => {
  const [LANES, OF_EACH] = [60, 49];
  const { shard } = startShard(NOW);
  const clock = { now: NOW };
  const owed = Array.from({ length: LANES * OF_EACH }, (_, n) =>
    owedOf({ projectNo: 1 + (n % LANES), dueAt: NOW + 10_000 }),
  );
  const { sweeper, asked } = startSweeper(owed, clock, LANES);
  for (const one of owed) shard.learn(one, NOW);
  await sweeper.sweep([shard]);
  expect(asked).toEqual([]);
  // Now all of them are due within the next look.
  clock.now += 9_000;
  await sweeper.sweep([shard]);
  expect(asked.flat()).toHaveLength(LANES - 2_000 / (1 + OF_EACH));
});

test("a lane with many entries is asked apart", async () => {
  const { shard } = startShard(NOW);
  const { sweeper, asked } = startSweeper([]);
  for (const [projectNo, count] of [
    [1, 64],
    [2, 65],
  ] as const)
    for (let n = 0; n < count; n++) shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
  await sweeper.sweep([shard]);
  expect(asked.flat().map(({ projectNo }) => projectNo)).toEqual([2]);
});

test("each shard is told of its own lanes, from its own mark on", async () => {
  const clock = { now: NOW };
  const one = startShard(NOW);
  const other = startShard(NOW, OTHER_SHARD);
  const owed = [owedOf({ projectNo: OTHER_SHARD_FROM, dueAt: NOW + 2_000 })];
  const { sweeper, asked, questions } = startSweeper(owed, clock, 2 * OTHER_SHARD_FROM);
  await sweeper.sweep([one.shard]);
  clock.now += 1_000;
  one.shard.learn(owedOf({ projectNo: 1, dueAt: NOW + 60_000 }), NOW);
  other.shard.learn(owedOf({ projectNo: OTHER_SHARD_FROM, dueAt: NOW + 60_000 }), NOW);
  for (let sweep = 0; sweep < 3; sweep++) {
    questions();
    await sweeper.sweep([one.shard, other.shard]);
    expect(asked).toEqual([]);
    const found = questions();
    const sinceOf = (projectNo: number) =>
      found.find((question) => question.projectNo === projectNo)?.sinceAt;
    expect(sinceOf(1)).toBe(clock.now - 1_000 - SWEEP_LAG_MS);
    expect(sinceOf(OTHER_SHARD_FROM)).toBe(
      sweep === 0 ? Number.NEGATIVE_INFINITY : clock.now - 1_000 - SWEEP_LAG_MS,
    );
    clock.now += 1_000;
  }
  expect([one, other].map(({ shard }) => shard.rememberedLanes().length)).toEqual([1, 1]);
});

test("what is read with the forgotten lanes is known before other lanes have their answers, and stays known if these fail", async () => {
  const { shard, lane } = startShard(NOW);
  const untold = owedOf({ projectNo: 1, dueAt: NOW });
  const { sweeper, asked, failing, hold } = startSweeper([untold]);
  for (const projectNo of [1, 2]) shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
  lane(2)?.overflow();
  failing.add("refill");
  const release = hold("refill");
  const sweeping = sweeper.sweep([shard]).catch((error) => error);
  await Bun.sleep(1);
  expect(asked.flat().map(({ projectNo }) => projectNo)).toEqual([2]);
  expect(lane(1)?.find(untold.id)?.state).toBe("ready");
  release();
  expect(await sweeping).toEqual(new Error("no answer"));
  expect(lane(1)?.find(untold.id)?.state).toBe("ready");
});

test("a sweep ends once both its questions have ended, although one has failed before", async () => {
  const { shard, lane } = startShard(NOW);
  const { sweeper, failing, hold } = startSweeper([]);
  for (const projectNo of [1, 2]) shard.learn(owedOf({ projectNo, dueAt: NOW + 60_000 }), NOW);
  lane(2)?.overflow();
  for (const [fails, waits] of [
    ["refill", "sweep"],
    ["sweep", "refill"],
  ] as const) {
    failing.clear();
    failing.add(fails);
    const release = hold(waits);
    let hasEnded = false;
    const sweeping = sweeper.sweep([shard]).catch(() => {
      hasEnded = true;
    });
    await Bun.sleep(1);
    expect(hasEnded).toBe(false);
    release();
    await sweeping;
    expect(hasEnded).toBe(true);
  }
});

test("if many entries are known, lanes take turns in having theirs read again; what comes next is found all the same", async () => {
  const [LANES, OF_EACH] = [36, 400];
  const clock = { now: NOW };
  const { shard, lane } = startShard(NOW);
  const owed: OwedAttempt[] = [];
  for (let projectNo = 1; projectNo <= LANES; projectNo++)
    for (let n = 0; n < OF_EACH; n++) owed.push(owedOf({ projectNo, dueAt: NOW + 1_000 }));
  const { sweeper, questions } = startSweeper(owed, clock, LANES);
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
    for (let n = 0; n < OF_EACH; n++) owed.push(owedOf({ projectNo, dueAt: NOW + 1_000 }));
  const lost = owedOf({ projectNo: LANES, dueAt: NOW });
  const { sweeper, questions } = startSweeper([...owed, lost], clock);
  for (const one of [...owed, lost]) shard.learn(one, NOW);
  for (let look = 0; look < 2; look++) await sweeper.sweep([shard]);
  send(NOW);
  clock.now += 3_500;
  // The claim was not answered in time.
  shard.tidy(clock.now);
  expect(lane(LANES)?.find(lost.id)).toBeUndefined();
  questions();
  await sweeper.sweep([shard]);
  const found = questions();
  expect(found.filter(({ sinceAt }) => sinceAt > NOW)).toHaveLength(LANES - 1 - 12);
  expect(found.find(({ projectNo }) => projectNo === LANES)?.sinceAt).toBeLessThanOrEqual(NOW);
  expect(lane(LANES)?.find(lost.id)?.state).toBe("ready");
});

test("a lane whose question was not answered is read as a whole by the next sweep", async () => {
  const clock = { now: NOW };
  const { shard } = startShard(NOW);
  const owed = Array.from({ length: 20 }, (_, n) =>
    Array.from({ length: 400 }, () => owedOf({ projectNo: n + 1, dueAt: NOW + 1_000 })),
  ).flat();
  const { sweeper, questions, failing } = startSweeper(owed, clock);
  for (const one of owed) shard.learn(one, NOW);
  for (let look = 0; look < 3; look++) await sweeper.sweep([shard]);
  questions();
  await sweeper.sweep([shard]);
  expect(questions().some(({ sinceAt }) => sinceAt > NOW)).toBe(true);
  failing.add("refill");
  await expect(sweeper.sweep([shard])).rejects.toThrow("no answer");
  failing.clear();
  questions();
  await sweeper.sweep([shard]);
  expect(questions().every(({ sinceAt }) => sinceAt < NOW)).toBe(true);
});

test("a lane that was read with the forgotten ones, without an answer, is read as a whole by the next sweep", async () => {
  const SMALL = 21;
  const { shard, lane } = startShard(NOW);
  // The first ten leave room for the small lane when it is their turn to be read again, and the next ten leave none.
  const owed = Array.from({ length: SMALL }, (_, n) =>
    Array.from({ length: n < 10 ? 492 : n < 20 ? 498 : 60 }, () =>
      owedOf({ projectNo: n + 1, dueAt: NOW + 1_000 }),
    ),
  ).flat();
  const { sweeper, asked, questions, failing } = startSweeper(owed);
  for (const one of owed) shard.learn(one, NOW);
  for (let look = 0; look < 2; look++) await sweeper.sweep([shard]);
  lane(SMALL)?.lookFrom(NOW);
  asked.length = 0;
  failing.add("sweep");
  await expect(sweeper.sweep([shard])).rejects.toThrow("no answer");
  expect(asked.flat().some(({ projectNo }) => projectNo === SMALL)).toBe(false);
  failing.clear();
  questions();
  await sweeper.sweep([shard]);
  const found = questions();
  const whole = found.filter(({ projectNo, sinceAt }) => projectNo < SMALL && sinceAt < NOW);
  expect(whole.map(({ projectNo }) => projectNo)).toEqual(Array.from({ length: 10 }, (_, n) => 11 + n));
  expect(found.find(({ projectNo }) => projectNo === SMALL)?.sinceAt).toBeLessThanOrEqual(NOW);
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
    expect(whole.map(({ projectNo }) => projectNo).toSorted((one, other) => one - other)).toEqual(
      Array.from({ length: LANES - BLOCKED }, (_, n) => BLOCKED + 1 + n),
    );
  }
});
