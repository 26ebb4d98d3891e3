import { useState } from "preact/hooks";
import { REGIONS, type Region } from "../../../../../shared/domain/scope.ts";
import { faultOf, useAction } from "../../data/action.ts";
import { may, noteProject, type Session } from "../../data/session.ts";
import { tell } from "../../ui/dialog.tsx";
import { Form, optionsOf, SelectField, TextField } from "../../ui/form.tsx";
import { Card, ScopeNote, Trouble } from "../../ui/page.tsx";
import { Id } from "../../ui/small.tsx";

/** The name of the project, and the region of its jobs that name none. */
export function ProjectSettings({ session }: { session: Session }) {
  const { client, project } = session;
  const [name, setName] = useState(project.name);
  const [region, setRegion] = useState<string>(project.default_region);
  const save = useAction(async () => {
    noteProject(await client.project.update({ name, default_region: region as Region }));
    tell("The project is changed.");
  });
  const facts = (
    <dl class="facts">
      <dt>Plan</dt>
      <dd>{project.plan}</dd>
      <dt>API version</dt>
      <dd class="number">{project.api_version}</dd>
      <dt>Id</dt>
      <dd>
        <Id id={project.id} />
      </dd>
    </dl>
  );
  return (
    <Card title="Project">
      {facts}
      {may(session, "project", "write") ? (
        <Form label="Project" onSubmit={() => save.run()}>
          <TextField
            label="Project name"
            value={name}
            onInput={setName}
            fault={faultOf(save.error, "name")}
          />
          <SelectField
            label="Default region"
            value={region}
            onChange={setRegion}
            options={optionsOf(REGIONS)}
            hint="For jobs to come that name none."
            fault={faultOf(save.error, "default_region")}
          />
          <Trouble error={save.error} />
          <div>
            <button type="submit" class="button" disabled={save.isBusy}>
              Save the project
            </button>
          </div>
        </Form>
      ) : (
        <ScopeNote session={session} what="change the project" />
      )}
    </Card>
  );
}
