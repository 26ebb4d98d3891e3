import { useState } from "preact/hooks";
import type { Job } from "../../../../../shared/client/jobs.ts";
import { RawJson } from "../../../../../shared/client/payload.ts";
import { REGIONS, type Region } from "../../../../../shared/domain/scope.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf, place } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { may, useSession } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { AreaField, Form, instantOf, optionsOf, SelectField, TextField } from "../../ui/form.tsx";
import { layOut, memberText } from "../../ui/json.tsx";
import { Card, Empty, Loading, PageHead, ScopeNote, Trouble } from "../../ui/page.tsx";
import { RetryFields } from "../../ui/retry-fields.tsx";
import { Link } from "../../ui/small.tsx";
import { FlowFields, type FlowTexts, flowOf, flowTextsOf } from "../flows/fields.tsx";

/** `jobs/new`, and `jobs/new?from={id}` for one like another. */
export function NewJobPage() {
  const session = useSession();
  const from = place.value.query.get("from");
  const query = useQuery(`new job ${from}`, async (signal) => {
    if (from === null) return NOTHING;
    const { result, answer } = await session.client.jobs.get(from, { signal }).withAnswer();
    return wishOf(result, memberText(answer.text, "payload") ?? "{}");
  });
  const head = <PageHead title="Create a job" trail={{ href: hrefOf("jobs"), label: "Jobs" }} />;
  if (!may(session, "jobs", "write")) {
    return (
      <>
        {head}
        <Empty title="Not with this key">
          <ScopeNote session={session} what="create jobs" />
        </Empty>
      </>
    );
  }
  return (
    <>
      {head}
      {query.data !== undefined ? (
        <JobForm wish={query.data} />
      ) : query.error !== undefined ? (
        <Trouble error={query.error} onRetry={query.reload} />
      ) : (
        <Loading what="the job to copy" />
      )}
    </>
  );
}

/** The texts of the form. */
interface Wish extends FlowTexts {
  targetUrl: string;
  payload: string;
  runAt: string;
  region: string;
  tags: string;
  maxAttempts: string;
  baseSeconds: string;
  capSeconds: string;
}

const NOTHING: Wish = {
  targetUrl: "",
  payload: "{}",
  runAt: "",
  region: "",
  tags: "",
  maxAttempts: "",
  baseSeconds: "",
  capSeconds: "",
  ...flowTextsOf(undefined),
};

/** The instant is left out: a copy runs now, unless it is told otherwise. */
function wishOf(job: Job, payload: string): Wish {
  return {
    targetUrl: job.target_url,
    payload: layOut(payload),
    runAt: "",
    region: job.region,
    tags: (job.tags ?? []).join(" "),
    maxAttempts: String(job.retry_policy.max_attempts),
    baseSeconds: String(job.retry_policy.base_seconds),
    capSeconds: String(job.retry_policy.cap_seconds),
    ...flowTextsOf(job.flow),
  };
}

function JobForm({ wish: given }: { wish: Wish }) {
  const session = useSession();
  const [wish, setWish] = useState(given);
  const set = (name: keyof Wish) => (value: string) => setWish((before) => ({ ...before, [name]: value }));
  const create = usePost(async (options) => {
    const job = await session.client.jobs.create(requestOf(wish), options);
    tell("The job is created.");
    goTo(hrefOf("jobs", [job.id]));
  }, wish);
  const fault = (param: string) => faultOf(create.error, param);
  const isJsonFault = create.error instanceof SyntaxError;
  return (
    <Card>
      <Form label="Create a job" onSubmit={() => create.run()}>
        <TextField
          label="Target URL"
          type="url"
          value={wish.targetUrl}
          onInput={set("targetUrl")}
          placeholder="https://example.com/hook"
          fault={fault("target_url")}
          isMono
          hasFocus
        />
        <AreaField
          label="Payload"
          value={wish.payload}
          onInput={set("payload")}
          rows={8}
          hint="A JSON object. Your target receives every digit as you write it."
          fault={
            isJsonFault ? `This is no JSON object: ${(create.error as Error).message}` : fault("payload")
          }
        />
        <div class="form-row">
          <TextField
            label="Run at"
            type="datetime-local"
            value={wish.runAt}
            onInput={set("runAt")}
            hint={instantOf(wish.runAt)?.replace(".000Z", "Z") ?? "Empty for now. Your local time."}
            fault={fault("run_at")}
          />
          <SelectField
            label="Region"
            value={wish.region}
            onChange={set("region")}
            options={optionsOf(REGIONS, `the project's (${session.project.default_region})`)}
            fault={fault("region")}
          />
          <TextField
            label="Tags"
            value={wish.tags}
            onInput={set("tags")}
            placeholder="customer:4711 invoices"
            hint="With blanks between them."
            fault={fault("tags")}
          />
        </div>
        <RetryFields texts={wish} set={set} fault={fault} />
        <FlowFields texts={wish} set={set} fault={fault} />
        {!isJsonFault && <Trouble error={create.error} />}
        <div class="buttons">
          <button type="submit" class="button first" disabled={create.isBusy}>
            {create.isBusy ? "Creating …" : "Create the job"}
          </button>
          <Link class="button" href={hrefOf("jobs")}>
            Back
          </Link>
        </div>
      </Form>
    </Card>
  );
}

/** Throws SyntaxError unless the payload is a JSON object. */
function requestOf(wish: Wish) {
  const runAt = instantOf(wish.runAt);
  const tags = wish.tags.split(/\s+/).filter((tag) => tag !== "");
  const flow = flowOf(wish);
  const policy = {
    ...(wish.maxAttempts && { max_attempts: Number(wish.maxAttempts) }),
    ...(wish.baseSeconds && { base_seconds: Number(wish.baseSeconds) }),
    ...(wish.capSeconds && { cap_seconds: Number(wish.capSeconds) }),
  };
  return {
    target_url: wish.targetUrl,
    payload: new RawJson(wish.payload),
    ...(runAt === undefined ? {} : { run_at: runAt }),
    ...(wish.region && { region: wish.region as Region }),
    ...(tags.length === 0 ? {} : { tags }),
    ...(Object.keys(policy).length === 0 ? {} : { retry_policy: policy }),
    ...(flow !== null && { flow }),
  };
}
