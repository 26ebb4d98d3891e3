import { eq, sql } from "drizzle-orm";
import { idToUuid, PROJECT_PREFIX, parseId, uuidToId } from "../../domain/ids.ts";
import { isPlan, limitsOf, monthRunsMax, PLAN_TERMS, type Plan, type PlanFacts } from "../../domain/plan.ts";
import { ENVIRONMENTS, type Environment, type ProjectNo, type Region } from "../../domain/scope.ts";
import { environmentCode, regionCode, regionOf, retentionClassOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { flows } from "../database/schema/gates.ts";
import { projects, rateWindows, signingSecrets } from "../database/schema/resources.ts";
import { MONTH_RUNS } from "../queue/month.ts";
import { noteRunMove } from "../retention/run-moves.ts";
import { type KeyCause, type OperatorCause, recordChange } from "./audit.ts";
import { addKey, type NewKey } from "./keys.ts";
import { openFailingHosts, watchHosts } from "./target-hosts.ts";

export interface ProjectRow extends PlanFacts {
  no: ProjectNo;
  id: string;
  name: string;
  defaultRegion: Region;
  apiVersion: string;
  /** Null if no client has set it, which means false. */
  parksFailingHosts: boolean | null;
}

export interface NewProject {
  id: string;
  name: string;
  plan: Plan;
  defaultRegion: Region;
  apiVersion: string;
  keys: Omit<NewKey, "projectNo">[];
  /** One for each environment, sealed. */
  secrets: { id: string; environment: Environment; sealed: Buffer }[];
}

/** Creates a project with its keys and signing secrets, all or nothing. */
export async function createProject(
  db: Database,
  project: NewProject,
  cause: OperatorCause,
): Promise<ProjectRow> {
  return db.transact(async ({ drizzle: tx }) => {
    const [row] = await tx
      .insert(projects)
      .values({
        id: idToUuid(project.id),
        name: project.name,
        plan: project.plan,
        defaultRegion: regionCode(project.defaultRegion),
        apiVersion: project.apiVersion,
      })
      .returning();
    if (row === undefined) throw new Error("an inserted project did not come back");
    await tx.insert(flows).values({
      projectNo: row.no,
      concurrency: PLAN_TERMS[project.plan].concurrency,
      retentionClass: retentionClassOf(project.plan),
      month: sql`date_trunc('month', now())::date`,
      monthRunsMax: monthRunsMax(project.plan),
    });
    await tx
      .insert(rateWindows)
      .values(
        ENVIRONMENTS.map((environment) => ({ projectNo: row.no, environment: environmentCode(environment) })),
      );
    for (const key of project.keys) await addKey(tx, { ...key, projectNo: row.no });
    await tx.insert(signingSecrets).values(
      project.secrets.map((secret) => ({
        id: idToUuid(secret.id),
        projectNo: row.no,
        environment: environmentCode(secret.environment),
        sealed: secret.sealed,
      })),
    );
    const { id: subject, name, plan, defaultRegion: default_region } = project;
    const detail = { name, plan, default_region, keys: project.keys.map(({ id }) => id) };
    await recordChange(tx, cause, {
      action: "project.create",
      projectNo: row.no,
      environment: null,
      subject,
      detail,
    });
    return readProject(row);
  });
}

export async function findProject(db: Database, id: string): Promise<ProjectRow | null> {
  if (parseId(PROJECT_PREFIX, id) === null) return null;
  const [row] = await db.drizzle
    .select()
    .from(projects)
    .where(eq(projects.id, idToUuid(id)));
  return row === undefined ? null : readProject(row);
}

export async function listProjects(db: Database): Promise<ProjectRow[]> {
  return (await db.drizzle.select().from(projects).orderBy(projects.no)).map(readProject);
}

/** How many runs the quota counts: the runs that started in this UTC month, over both environments. */
export async function countMonthRuns(db: Database, projectNo: ProjectNo): Promise<number> {
  const rows = await db.run<{ runs: number }>(
    "month_runs",
    `SELECT (${MONTH_RUNS})::float8 AS runs FROM flows f WHERE f.project_no = $1`,
    [projectNo],
  );
  return rows[0]?.runs ?? 0;
}

export type ProjectChange = Partial<PlanFacts & Pick<ProjectRow, "apiVersion">>;

/** Changes the fields that an operator may change, and the limits of the flow. Null if there is no such project. */
export async function changeProject(
  db: Database,
  id: string,
  change: ProjectChange,
  cause: OperatorCause,
): Promise<ProjectRow | null> {
  return db.transact(async ({ drizzle: tx }) => {
    const found = await tx
      .select()
      .from(projects)
      .where(eq(projects.id, idToUuid(id)))
      .for("update");
    if (found[0] === undefined) return null;
    const before = readProject(found[0]);
    const project = { ...before, ...change };
    const [row] = await tx
      .update(projects)
      .set({
        plan: project.plan,
        apiVersion: project.apiVersion,
        requestsPerMinute: project.requestsPerMinuteOverride,
        concurrency: project.concurrencyOverride,
        schedules: project.schedulesOverride,
      })
      .where(eq(projects.no, project.no))
      .returning();
    if (retentionClassOf(project.plan) > retentionClassOf(before.plan)) await noteRunMove(tx, project.no);
    await recordChange(tx, cause, {
      action: "project.change",
      projectNo: project.no,
      environment: null,
      subject: id,
      detail: {
        plan: change.plan,
        api_version: change.apiVersion,
        requests_per_minute: change.requestsPerMinuteOverride,
        concurrency: change.concurrencyOverride,
        schedules: change.schedulesOverride,
      },
    });
    // Claims and settlements wait for the flow, so it is locked by the last statement before the commit.
    await tx
      .update(flows)
      .set({
        concurrency: limitsOf(project).concurrency,
        monthRunsMax: monthRunsMax(project.plan),
        retentionClass: retentionClassOf(project.plan),
      })
      .where(eq(flows.projectNo, project.no));
    return row === undefined ? null : readProject(row);
  });
}

/** Changes the fields that a project's own keys may change. A member that is absent stays as it is. */
export async function updateProject(
  db: Database,
  projectNo: ProjectNo,
  change: Partial<Pick<ProjectRow, "name" | "defaultRegion"> & { parksFailingHosts: boolean }>,
  cause: KeyCause,
): Promise<ProjectRow> {
  const { name, defaultRegion, parksFailingHosts } = change;
  if (parksFailingHosts === true) await watchHosts(db, projectNo);
  const updated = await db.transact(async ({ drizzle: tx }) => {
    const [row] = await tx
      .update(projects)
      .set({
        name: name ?? sql`${projects.name}`,
        defaultRegion:
          defaultRegion === undefined ? sql`${projects.defaultRegion}` : regionCode(defaultRegion),
        parkFailingHosts: parksFailingHosts ?? sql`${projects.parkFailingHosts}`,
      })
      .where(eq(projects.no, projectNo))
      .returning();
    if (row === undefined) throw new Error(`there is no project ${projectNo}`);
    const project = readProject(row);
    await recordChange(tx, cause, {
      action: "project.update",
      projectNo,
      environment: null,
      subject: project.id,
      detail: { name, default_region: defaultRegion, park_failing_hosts: parksFailingHosts },
    });
    return project;
  });
  if (parksFailingHosts === false) await openFailingHosts(db, projectNo);
  return updated;
}

/** Counts the runs that started in a UTC month (YYYY-MM): all runs, and by day (YYYY-MM-DD) those of one region or of all. */
export async function countUsage(
  db: Database,
  projectNo: ProjectNo,
  month: string,
  region: Region | null,
): Promise<{ runsTotal: number; runsByDay: Map<string, number> }> {
  const rows = await db.run<{ day: string; total: number; shown: number }>("usage", USAGE, [
    projectNo,
    month,
    region === null ? null : regionCode(region),
  ]);
  return {
    runsTotal: rows.reduce((sum, row) => sum + row.total, 0),
    runsByDay: new Map(rows.map((row) => [row.day, row.shown])),
  };
}

// to_date reads every month. A cast of '0000-01-01' would fail, because Postgres counts from the year 1.
const USAGE = `
SELECT to_char(day, 'YYYY-MM-DD') AS day, sum(runs)::float8 AS total,
       coalesce(sum(runs) FILTER (WHERE $3::smallint IS NULL OR region = $3), 0)::float8 AS shown
  FROM usage_days
 WHERE project_no = $1 AND day >= to_date($2, 'YYYY-MM') AND day < to_date($2, 'YYYY-MM') + interval '1 month'
 GROUP BY day`;

export function readProject(row: typeof projects.$inferSelect): ProjectRow {
  if (!isPlan(row.plan)) throw new Error(`unknown plan ${row.plan} in a row`);
  return {
    no: row.no,
    id: uuidToId(PROJECT_PREFIX, row.id),
    name: row.name,
    plan: row.plan,
    defaultRegion: regionOf(row.defaultRegion),
    apiVersion: row.apiVersion,
    requestsPerMinuteOverride: row.requestsPerMinute,
    concurrencyOverride: row.concurrency,
    schedulesOverride: row.schedules,
    parksFailingHosts: row.parkFailingHosts,
  };
}
