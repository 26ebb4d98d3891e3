import { expect } from "bun:test";
import fc from "fast-check";
import { TARGET_URL } from "../support/gateway.ts";
import {
  type Env,
  INVALID,
  isRefused,
  type JobFilters,
  type ModelJob,
  QUOTA,
  type ReferenceModel,
  type Refused,
} from "./reference-model.ts";
import {
  ask,
  askedJob,
  askedOf,
  choice,
  create,
  env,
  expectRefusal,
  isOwn,
  key,
  limit,
  Step,
  UNKNOWN_JOB,
  walk,
} from "./step.ts";

/** A job's fields as a client sends them, and the refusal that faults in them must get. */
interface Wish {
  fields: object;
  refused: Refused | null;
}

const invalid = (param: string, fields: object): Wish => ({ fields, refused: { ...INVALID, param } });

const INVALID_WISHES: Wish[] = [
  invalid("target_url", {}),
  invalid("target_url", { target_url: "http://example.com/" }),
  invalid("target_url", { target_url: "https://169.254.169.254/" }),
  invalid("runAt", { target_url: TARGET_URL, runAt: "2099-01-01T00:00:00Z" }),
  invalid("run_at", { target_url: TARGET_URL, run_at: "tomorrow" }),
  invalid("retry_policy.max_attempts", { target_url: TARGET_URL, retry_policy: { max_attempts: 26 } }),
  invalid("retry_policy.base_seconds", {
    target_url: TARGET_URL,
    retry_policy: { base_seconds: 20, cap_seconds: 10 },
  }),
  invalid("region", { target_url: TARGET_URL, region: "mars" }),
  invalid("payload", { target_url: TARGET_URL, payload: [1] }),
  invalid("tags", { target_url: TARGET_URL, tags: [] }),
  invalid("tags[1]", { target_url: TARGET_URL, tags: ["a", "a"] }),
  {
    fields: { target_url: TARGET_URL, run_at: "2020-01-01T00:00:00Z" },
    refused: { status: 400, code: "run_at_in_past", param: "run_at" },
  },
];

export const FUTURE = "2035-03-04T05:06:07.089Z";
export const TAGS = ["a", "b/c:d@e+f", "NULL"] as const;
const REGIONS = ["us-east", "us-west", "eu-central", "ap-southeast"] as const;

/** Present now and then, so that most wishes are plain. */
const rarely = <T>(arbitrary: fc.Arbitrary<T>) =>
  fc.oneof({ weight: 4, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary });

const validWish: fc.Arbitrary<Wish> = fc
  .record({
    payload: rarely(
      fc.dictionary(fc.string({ maxLength: 4 }), fc.jsonValue({ maxDepth: 1 }), { maxKeys: 3 }),
    ),
    run_at: rarely(fc.constant(FUTURE)),
    region: rarely(fc.constantFrom(...REGIONS)),
    tags: rarely(fc.subarray([...TAGS], { minLength: 1 })),
    retry_policy: fc.record(
      {
        max_attempts: fc.integer({ min: 1, max: 3 }),
        base_seconds: fc.integer({ min: 1, max: 10 }),
        cap_seconds: fc.integer({ min: 10, max: 86_400 }),
      },
      { requiredKeys: ["max_attempts"] },
    ),
  })
  .map((fields) => ({ fields: onlyGiven({ ...fields, target_url: TARGET_URL }), refused: null }));

const onlyGiven = (fields: object) =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));

const wish = fc.oneof(
  { weight: 9, arbitrary: validWish },
  { weight: 1, arbitrary: fc.constantFrom(...INVALID_WISHES) },
);

const refusalOf = (model: ReferenceModel, { fields, refused }: Wish): Refused | null => {
  const { region } = fields as { region?: string };
  const isBeyondPlan = model.terms.plan === "hobby" && region !== undefined && region !== "us-east";
  return refused ?? (isBeyondPlan ? { ...INVALID, param: "region" } : null);
};

/** Expects the answer to show the wanted fields, with the documented defaults. */
function addCreated(model: ReferenceModel, env: Env, view: JobView, { fields }: Wish): void {
  const asked = fields as Partial<JobView>;
  const retryPolicy = { max_attempts: 5, base_seconds: 10, cap_seconds: 3_600, ...asked.retry_policy };
  expect(view).toEqual({
    id: expect.stringMatching(/^job_[0-9a-hjkmnp-tv-z]{26}$/),
    status: "queued",
    target_url: TARGET_URL,
    payload: asked.payload ?? {},
    run_at: asked.run_at ?? view.created_at,
    region: asked.region ?? model.defaultRegion,
    retry_policy: retryPolicy,
    attempts: 0,
    created_at: view.created_at,
    ...(asked.tags === undefined ? {} : { tags: asked.tags }),
  } as unknown as JobView);
  expect(Math.abs(Date.parse(view.created_at) - Date.now())).toBeLessThan(10_000);
  model.addJob(env, view);
}

type JobView = Omit<ModelJob, "env" | "allowed" | "current">;

/** Reverses the members of the outermost object: another text, the same JSON value. */
const reversed = (body: object) => Object.fromEntries(Object.entries(body).reverse());

export const createJob = fc.tuple(env, wish, key, fc.boolean()).map(
  ([env, wish, key, isReversed]) =>
    new Step(`create ${env} ${JSON.stringify(wish.fields)} key ${key}`, (model, service) =>
      create(
        model,
        service,
        { env, method: "POST", path: "/v2/jobs", body: isReversed ? reversed(wish.fields) : wish.fields },
        { key, operation: "jobs", body: JSON.stringify(sorted(wish.fields)) },
        () => refusalOf(model, wish) ?? (model.hasQuota ? null : QUOTA),
        (answer) => addCreated(model, env, JSON.parse(answer.text), wish),
      ),
    ),
);

const sorted = (body: object) =>
  Object.fromEntries(Object.entries(body).sort(([one], [other]) => (one < other ? -1 : 1)));

export const createBatch = fc.tuple(env, fc.array(wish, { maxLength: 3 }), key).map(
  ([env, wishes, key]) =>
    new Step(
      `batch ${env} ${JSON.stringify(wishes.map(({ fields }) => fields))} key ${key}`,
      (model, service) =>
        create(
          model,
          service,
          { env, method: "POST", path: "/v2/jobs/batch", body: { jobs: wishes.map(({ fields }) => fields) } },
          { key, operation: "batch", body: JSON.stringify(wishes.map(({ fields }) => sorted(fields))) },
          () => {
            if (wishes.length === 0) return { ...INVALID, param: "jobs" };
            if (wishes.some((wish) => refusalOf(model, wish) !== null)) return INVALID;
            return model.hasQuota ? null : QUOTA;
          },
          (answer) => {
            const { data } = JSON.parse(answer.text) as { data: JobView[] };
            expect(data.length).toBe(wishes.length);
            for (const [index, wish] of wishes.entries())
              addCreated(model, env, data[index] as JobView, wish);
          },
        ),
    ),
);

const fullView = ({ env: _, allowed: __, current: ___, ...view }: ModelJob) => view;
const listView = (job: ModelJob) => {
  const { payload: _, run_at: __, retry_policy: ___, ...view } = fullView(job);
  return view;
};

export const getJob = fc.tuple(isOwn, choice).map(
  ([isOwn, index]) =>
    new Step(
      `get job ${index} , own ${isOwn}`,
      async (model, service) => {
        const { id, env } = askedJob(model, index, isOwn);
        const answer = await ask(model, service, { env, method: "GET", path: `/v2/jobs/${id}` });
        if (answer === null) return;
        const job = model.job(env, id);
        if (job === null) return expectRefusal(answer, { status: 404, code: "resource_not_found" });
        expect(JSON.parse(answer.text)).toEqual(fullView(job));
      },
      (model) => index === 0 || model.jobs.length > 0,
    ),
);

export const cancelJob = fc.tuple(isOwn, choice).map(
  ([isOwn, index]) =>
    new Step(
      `cancel job ${index} , own ${isOwn}`,
      async (model, service) => {
        const retried = index % 4 === 1 ? model.owedByHand : [];
        const { id, env } = askedOf(retried.length > 0 ? retried : model.jobs, index, isOwn, UNKNOWN_JOB);
        const answer = await ask(model, service, { env, method: "DELETE", path: `/v2/jobs/${id}` });
        if (answer === null) return;
        const was = model.job(env, id)?.current;
        if (was) service.note(`cancel of a job ${was.isSent ? "on the wire" : "before it was sent"}`);
        const job = model.cancel(env, id);
        if (isRefused(job)) return expectRefusal(answer, job);
        expect(JSON.parse(answer.text)).toEqual({ ...listView(job), run_at: job.run_at });
      },
      (model) => index === 0 || model.jobs.length > 0,
    ),
);

export const listJobs = fc
  .tuple(
    env,
    limit,
    fc.record(
      {
        status: fc.constantFrom("queued", "running", "succeeded", "failed", "canceled"),
        region: fc.constantFrom(...REGIONS),
        tag: fc.constantFrom(...TAGS, "unknown"),
      },
      { requiredKeys: [] },
    ),
    fc.record({ created_after: choice, created_before: choice }, { requiredKeys: [] }),
  )
  .map(
    ([env, limit, words, created]) =>
      new Step(
        `list jobs of ${env} by ${limit} ${JSON.stringify({ ...words, created })}`,
        async (model, service) => {
          // The creation of some job, or an instant that is beyond all.
          const instants = Object.entries(created).map(([name, index]) => [
            name,
            model.jobs[index % (model.jobs.length + 1)]?.created_at ?? FUTURE,
          ]);
          const filters: JobFilters = { ...words, ...Object.fromEntries(instants) };
          const found = await walk(model, service, { env, path: "/v2/jobs", limit, filters: { ...filters } });
          if (found !== null) expect(found).toEqual(model.listJobs(env, filters).map(listView));
        },
      ),
  );
