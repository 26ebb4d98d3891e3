import {
  readProjectUpdate,
  readUsageQuery,
  viewProject,
  viewUsage,
} from "../../../shared/contract/project.ts";
import { idTimeMs } from "../../../shared/domain/ids.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import {
  countMonthRuns,
  countUsage,
  type ProjectRow,
  updateProject,
} from "../../../shared/store/resources/projects.ts";
import type { ApiAnswer } from "../request/answer.ts";
import type { Authenticator } from "../request/authenticate.ts";
import { BODY_BYTES_MAX } from "../request/body.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

export function projectRoutes(options: {
  db: Database;
  clock: Clock;
  authenticator: Pick<Authenticator, "forget">;
}): RoutesOf<"project"> {
  const { db, clock, authenticator } = options;

  async function show({ caller }: ApiRequest, project: ProjectRow): Promise<ApiAnswer> {
    const { environment, version: apiVersion } = caller;
    const runsThisMonth = await countMonthRuns(db, project.no);
    const facts = { ...project, apiVersion, createdAt: idTimeMs(project.id) };
    return { status: 200, text: JSON.stringify(viewProject(facts, environment, runsThisMonth)) };
  }

  return {
    getProject: {
      body: null,
      async answer(request) {
        parseQuery(request.query, []);
        return show(request, request.caller.project);
      },
    },
    updateProject: {
      body: { payload: "none", bytesMax: BODY_BYTES_MAX },
      async answer(request, body) {
        parseQuery(request.query, []);
        const { no, plan } = request.caller.project;
        const change = readProjectUpdate(body.value, plan);
        const project = await updateProject(db, no, change, request.cause());
        authenticator.forget(no);
        return show(request, project);
      },
    },
    getUsage: {
      body: null,
      async answer({ caller, query }) {
        const now = clock.now();
        const { period, region } = readUsageQuery(query, now);
        const { no, plan } = caller.project;
        const usage = await countUsage(db, no, period, region);
        return { status: 200, text: JSON.stringify(viewUsage({ period, plan, ...usage }, now)) };
      },
    },
  };
}
