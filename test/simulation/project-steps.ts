import { expect } from "bun:test";
import fc from "fast-check";
import { type Env, INVALID, type ReferenceModel } from "./reference-model.ts";
import { ask, env, expectRefusal, Step } from "./step.ts";

export const showProject = fc.tuple(env, fc.boolean()).map(
  ([env, isUsage]) =>
    new Step(`${isUsage ? "usage" : "project"} of ${env}`, async (model, service) => {
      const path = isUsage ? "/v2/project/usage" : "/v2/project";
      const answer = await ask(model, service, { env, method: "GET", path });
      if (answer === null) return;
      const view = JSON.parse(answer.text);
      if (!isUsage) return expectProject(view, model, env);
      // Runs that were counted before the sequence began have no day.
      expect(view.runs_total).toBe(model.runsHere);
      expect(view.by_day.reduce((sum: number, day: { runs: number }) => sum + day.runs, 0)).toBe(
        model.runsHere,
      );
    }),
);

function expectProject(view: object, model: ReferenceModel, env: Env): void {
  expect(view).toMatchObject({
    name: model.name,
    plan: model.terms.plan,
    default_region: model.defaultRegion,
    limits: { requests_per_minute: model.terms.rate, concurrency: model.terms.concurrency },
    usage: { runs_this_period: model.runsCounted },
    environment: env,
  });
}

export const patchProject = fc
  .tuple(
    env,
    fc.record(
      { name: fc.constantFrom("A", "B", " "), default_region: fc.constantFrom("us-east", "us-west", "mars") },
      { requiredKeys: [] },
    ),
  )
  .map(
    ([env, change]) =>
      new Step(`change project by ${env} ${JSON.stringify(change)}`, async (model, service) => {
        const answer = await ask(model, service, { env, method: "PATCH", path: "/v2/project", body: change });
        if (answer === null) return;
        const { name, default_region: region } = change;
        const isRegionRefused = region === "mars" || (region === "us-west" && model.terms.plan === "hobby");
        // The type of a region is checked before any rule.
        const param = region === "mars" ? "default_region" : name === " " ? "name" : "default_region";
        if (name === " " || isRegionRefused) return expectRefusal(answer, { ...INVALID, param });
        if (name !== undefined) model.name = name;
        if (region !== undefined) model.defaultRegion = region;
        expectProject(JSON.parse(answer.text), model, env);
      }),
  );
