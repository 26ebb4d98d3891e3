import { useState } from "preact/hooks";
import { REGIONS, type Region } from "../../../../../shared/domain/scope.ts";
import { faultOf, usePost } from "../../data/action.ts";
import { goTo, hrefOf, place } from "../../data/place.ts";
import { useQuery } from "../../data/query.ts";
import { useSession } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { Form, FormFoot, instantOf, optionsOf, SelectField, TextField } from "../../ui/form.tsx";
import { memberText } from "../../ui/json.tsx";
import { Card, FormPage, NotYet } from "../../ui/page.tsx";
import { JobFields } from "./fields.tsx";
import { type JobTexts, jobMembersOf, jobTextsOf, NEW_JOB } from "./texts.ts";

/** `jobs/new`, and `jobs/new?from={id}` for a copy of another job. */
export function NewJobPage() {
  const { client } = useSession();
  const from = place.value.query.get("from");
  const query = useQuery(`new job ${from}`, async (signal): Promise<Wish> => {
    // The instant is left out: a copy runs now, unless it is told otherwise.
    if (from === null) return { ...NEW_JOB, runAt: "", region: "" };
    const { result: job, answer } = await client.jobs.get(from, { signal }).withAnswer();
    const texts = jobTextsOf(job, memberText(answer.text, "payload") ?? "{}");
    return { ...texts, runAt: "", region: job.region };
  });
  return (
    <FormPage
      title="Create a job"
      trail={{ href: hrefOf("jobs"), label: "Jobs" }}
      resource="jobs"
      what="create jobs"
    >
      {query.data === undefined ? (
        <NotYet query={query} what="the job to copy" />
      ) : (
        <JobForm wish={query.data} />
      )}
    </FormPage>
  );
}

/** The texts of the form. */
interface Wish extends JobTexts {
  runAt: string;
  region: string;
}

function JobForm({ wish: given }: { wish: Wish }) {
  const { client, project } = useSession();
  const [wish, setWish] = useState(given);
  const set = (name: keyof Wish) => (value: string) => setWish((before) => ({ ...before, [name]: value }));
  const create = usePost(async (options) => {
    const runAt = instantOf(wish.runAt);
    const request = {
      ...jobMembersOf(wish),
      ...(runAt !== undefined && { run_at: runAt }),
      ...(wish.region && { region: wish.region as Region }),
    };
    const job = await client.jobs.create(request, options);
    tell("The job is created.");
    goTo(hrefOf("jobs", [job.id]));
  }, wish);
  return (
    <Card>
      <Form label="Create a job" onSubmit={create.run}>
        <JobFields texts={wish} set={set} error={create.error} hasFocus>
          <TextField
            label="Run at"
            type="datetime-local"
            value={wish.runAt}
            onInput={set("runAt")}
            hint={instantOf(wish.runAt)?.replace(".000Z", "Z") ?? "Empty for now. Your local time."}
            fault={faultOf(create.error, "run_at")}
          />
          <SelectField
            label="Region"
            value={wish.region}
            onChange={set("region")}
            options={optionsOf(REGIONS, `the project's (${project.default_region})`)}
            fault={faultOf(create.error, "region")}
          />
        </JobFields>
        <FormFoot verb="Create the job" action={create} back={hrefOf("jobs")} />
      </Form>
    </Card>
  );
}
