import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { changeProject } from "../../../shared/store/resources/projects.ts";
import { testCause } from "../../support/cause.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newSchedule } from "./support.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const schedulesOf = (key: string, port = gateway.port) => clientOf(gateway, key, port).schedules;
const create = (key: string, port?: number) => schedulesOf(key, port).create(newSchedule());
const outcomeOf = (call: Promise<unknown>) =>
  call.then(
    () => "done",
    ({ code }) => code as string,
  );

/** A project with ten active schedules, which is its limit. */
async function addFullProject(): Promise<{ project: TestProject; ids: string[] }> {
  const project = await gateway.addProject("hobby");
  const ids: string[] = [];
  for (let n = 0; n < 10; n++) ids.push((await create(project.production)).id);
  return { project, ids };
}

describe("the limit of active schedules", () => {
  test("counts both environments together, and is checked after all fields", async () => {
    const hobby = await gateway.addProject("hobby");
    const keys = [hobby.development, hobby.production];
    for (const key of keys) for (let n = 0; n < 5; n++) await create(key);
    for (const key of keys) {
      const refusal = await refusalOf(create(key), "plan_limit_exceeded");
      expect([refusal.status, refusal.message]).toEqual([403, expect.stringContaining("10 active")]);
      const malformed = schedulesOf(key).create(newSchedule({ cron: "x" }));
      await refusalOf(malformed, "invalid_cron_expression", "cron");
    }
  });

  test("is exact when many schedules are created at once over two gateways", async () => {
    for (let round = 0; round < 3; round++) {
      const hobby = await gateway.addProject("hobby");
      const keys = [hobby.development, hobby.production];
      const outcomes = await Promise.all(
        keys.flatMap((key) =>
          [gateway.port, mate.port].flatMap((port) =>
            Array.from({ length: 6 }, () => outcomeOf(create(key, port))),
          ),
        ),
      );
      expect(outcomes.toSorted()).toEqual([
        ...Array(10).fill("done"),
        ...Array(14).fill("plan_limit_exceeded"),
      ]);
      const shown = await Promise.all(keys.map((key) => schedulesOf(key).list()));
      expect(shown.flatMap(({ data }) => data)).toHaveLength(10);
    }
  });

  test("leaves out paused and deleted schedules", async () => {
    const { project, ids } = await addFullProject();
    const { pause, delete: remove } = schedulesOf(project.production);
    const [first = "", second = ""] = ids;
    await pause(first);
    await create(project.production);
    await remove(second);
    await create(project.production);
    // The paused schedule was not counted any more, so its deletion makes no room.
    await remove(first);
    await refusalOf(create(project.production), "plan_limit_exceeded");
  });

  test("refuses a resumption, which then changes nothing", async () => {
    const { project, ids } = await addFullProject();
    const { pause, resume, update, get } = schedulesOf(project.production);
    const [first = "", second = ""] = ids;
    const paused = await pause(first);
    await create(project.production);
    await refusalOf(resume(first), "plan_limit_exceeded");
    await refusalOf(update(first, { paused: false, cron: "0 1 1 1 *" }), "plan_limit_exceeded");
    expect(await get(first)).toEqual(paused);
    // A change that leaves a schedule paused needs no room.
    expect(await update(first, { cron: "0 1 1 1 *" })).toMatchObject({ cron: "0 1 1 1 *", paused: true });
    await pause(second);
    expect(await resume(first)).toMatchObject({ paused: false });
  });

  test("is exact when many schedules are resumed at once over two gateways", async () => {
    const hobby = await gateway.addProject("hobby");
    const ids: string[] = [];
    for (let n = 0; n < 14; n++) {
      const { id } = await create(hobby.production);
      await schedulesOf(hobby.production).pause(id);
      ids.push(id);
    }
    const outcomes = await Promise.all(
      ids.flatMap((id) =>
        [gateway.port, mate.port].map((port) => outcomeOf(schedulesOf(hobby.production, port).resume(id))),
      ),
    );
    expect(outcomes.filter((outcome) => !["done", "plan_limit_exceeded"].includes(outcome))).toEqual([]);
    expect((await schedulesOf(hobby.production).list({ paused: false })).data).toHaveLength(10);
  });

  test("can be set for the project by an operator", async () => {
    const own = await gateway.addProject("hobby");
    await changeProject(gateway.db, own.id, { schedulesOverride: 12 }, testCause());
    const { key } = await gateway.addKey(own, {});
    const outcomes = await Promise.all(Array.from({ length: 15 }, () => outcomeOf(create(key))));
    expect(outcomes.filter((outcome) => outcome === "done")).toHaveLength(12);
    expect((await refusalOf(create(key), "plan_limit_exceeded")).message).toContain("12");
  });

  test("stops no existing schedule when the plan becomes smaller", async () => {
    const own = await gateway.addProject("pro");
    const made = [];
    for (let n = 0; n < 12; n++) made.push(await create(own.production));
    await changeProject(gateway.db, own.id, { plan: "hobby" }, testCause());
    const { key } = await gateway.addKey(own, {});
    const { list, update, pause, resume } = schedulesOf(key);
    expect((await list({ paused: false })).data).toEqual(made.toReversed());
    const [first, second] = made.map(({ id }) => id) as [string, string];
    expect(await update(first, { cron: "0 1 1 1 *", paused: false })).toMatchObject({ paused: false });
    await pause(second);
    await refusalOf(resume(second), "plan_limit_exceeded");
    await refusalOf(create(key), "plan_limit_exceeded");
  });
});
