import { viewProject } from "../../../shared/contract/project.ts";
import { idTimeMs } from "../../../shared/domain/ids.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import type { Database } from "../../../shared/store/database.ts";
import { countMonthRuns } from "../../../shared/store/projects.ts";
import type { Route } from "../app.ts";

export function projectRoutes({ db }: { db: Database }): Route[] {
  return [
    {
      method: "GET",
      path: "/v2/project",
      resource: "project",
      body: null,
      async answer({ caller, query }) {
        parseQuery(query, []);
        const { project, environment, version: apiVersion } = caller;
        const runsThisMonth = await countMonthRuns(db, project.no);
        const facts = { ...project, apiVersion, createdAt: idTimeMs(project.id) };
        return { status: 200, text: JSON.stringify(viewProject(facts, environment, runsThisMonth)) };
      },
    },
  ];
}
