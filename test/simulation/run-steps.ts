import { expect } from "bun:test";
import fc from "fast-check";
import { TAGS } from "./job-steps.ts";
import { isRefused, type ModelRun, type ReferenceModel } from "./reference-model.ts";
import {
  ask,
  askedJob,
  askedOf,
  askedRun,
  choice,
  create,
  env,
  expectRefusal,
  isOwn,
  key,
  limit,
  Step,
  UNKNOWN_RUN,
  walk,
} from "./step.ts";

export const retryRun = fc.tuple(isOwn, choice, key).map(
  ([isOwn, index, key]) =>
    new Step(
      `retry run ${index} own ${isOwn} key ${key}`,
      (model, service) => {
        const failed = model.runs.filter(({ status }) => status === "failed" || status === "timed_out");
        const runs = index % 4 === 0 || failed.length === 0 ? model.runs : failed;
        const { id, env } = askedOf(runs, index, isOwn, UNKNOWN_RUN);
        let retried: ReturnType<ReferenceModel["retry"]> | null = null;
        return create(
          model,
          service,
          { env, method: "POST", path: `/v2/runs/${id}/retry` },
          { key, operation: `retry ${id}`, body: "" },
          () => {
            retried = model.retry(env, id);
            return isRefused(retried) ? retried : null;
          },
          (answer) => {
            if (retried === null || isRefused(retried)) throw new Error("the model was not asked");
            const view = JSON.parse(answer.text) as { id: string; started_at: string };
            model.begin(retried.job, { id: view.id, started_at: view.started_at }, false);
            expectRun(view, model.run(env, view.id));
          },
        );
      },
      (model) => index === 0 || model.runs.length > 0,
    ),
);

export const getRun = fc.tuple(isOwn, choice).map(
  ([isOwn, index]) =>
    new Step(
      `get run ${index} , own ${isOwn}`,
      async (model, service) => {
        const { id, env } = askedRun(model, index, isOwn);
        const answer = await ask(model, service, { env, method: "GET", path: `/v2/runs/${id}` });
        if (answer === null) return;
        const run = model.run(env, id);
        if (run === null) return expectRefusal(answer, { status: 404, code: "resource_not_found" });
        expectRun(JSON.parse(answer.text), run);
      },
      (model) => index === 0 || model.runs.length > 0,
    ),
);

export const listRuns = fc
  .tuple(
    env,
    limit,
    fc.option(fc.constantFrom("running", "succeeded", "failed", "timed_out")),
    fc.option(choice),
    fc.option(fc.constantFrom(...TAGS, "unknown")),
  )
  .map(
    ([env, limit, status, index, tag]) =>
      new Step(
        `list runs of ${env} by ${limit}, ${status}, job ${index}, tag ${tag}`,
        async (model, service) => {
          const filters = {
            ...(status === null ? {} : { status }),
            ...(tag === null ? {} : { tag }),
            ...(index === null ? {} : { job_id: askedJob(model, index, true).id }),
          };
          const found = await walk(model, service, { env, path: "/v2/runs", limit, filters });
          if (found === null) return;
          const expected = model.listRuns(env, filters);
          expect(found.length).toBe(expected.length);
          for (const [index, run] of expected.entries()) expectRun(found[index] ?? {}, run);
        },
      ),
  );

function expectRun(view: object, run: ModelRun | null): void {
  if (run === null) throw new Error("the model knows no such run");
  const { env: _, next_retry_at: plan, ...facts } = run;
  expect(view).toEqual({ ...facts, next_retry_at: plan === "none" ? null : expect.any(String) });
}
