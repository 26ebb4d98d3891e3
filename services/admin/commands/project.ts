import { viewProject } from "../../../shared/contract/project.ts";
import { idTimeMs, PROJECT_PREFIX } from "../../../shared/domain/ids.ts";
import { checkName, PROJECT_NAME_CHARACTERS_MAX } from "../../../shared/domain/name.ts";
import { HOME_REGION, isRegionAllowed, LIMIT_OVERRIDE_MAX, PLANS } from "../../../shared/domain/plan.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import { API_VERSIONS } from "../../../shared/domain/version.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import {
  changeProject,
  countMonthRuns,
  findProject,
  listProjects,
  type ProjectChange,
  type ProjectRow,
} from "../../../shared/store/resources/projects.ts";
import { makeCause } from "../cause.ts";
import {
  type Command,
  type Input,
  parseChoice,
  parseIdOf,
  parseInteger,
  Refusal,
  table,
} from "../command.ts";
import { createProjectWithKeys } from "../create-project.ts";

export const projectCreate: Command = {
  usage: "--name NAME --plan PLAN [--default-region REGION]",
  options: ["name", "plan", "default-region"],
  async run(input, { db, operator, openSeal }) {
    const name = input.required("name");
    checkName(name, "--name", PROJECT_NAME_CHARACTERS_MAX);
    const plan = parseChoice(input.required("plan"), "--plan", PLANS);
    const defaultRegion = parseChoice(
      input.option("default-region") ?? HOME_REGION,
      "--default-region",
      REGIONS,
    );
    if (!isRegionAllowed(plan, defaultRegion)) {
      throw new Refusal(`the ${plan} plan is limited to the region ${HOME_REGION}`);
    }
    const created = await createProjectWithKeys(
      db,
      await openSeal(),
      { name, plan, defaultRegion },
      operator,
    );
    const project = await view(db, created.project);
    const { keys, signingSecrets } = created;
    return {
      json: { project, keys, signing_secrets: signingSecrets },
      text: `${describe(project)}\n\nShown this once:\n${table([
        ["development key", keys.development],
        ["production key", keys.production],
        ["development signing secret", signingSecrets.development],
        ["production signing secret", signingSecrets.production],
      ])}`,
    };
  },
};

export const projectList: Command = {
  usage: "",
  async run(_input, { db }) {
    const projects: ProjectView[] = [];
    for (const row of await listProjects(db)) projects.push(await view(db, row));
    return {
      json: { data: projects },
      text: table([
        ["ID", "NAME", "PLAN", "REGION", "RUNS THIS MONTH"],
        ...projects.map((project) => [
          project.id,
          project.name,
          project.plan,
          project.default_region,
          String(project.usage.runs_this_period),
        ]),
      ]),
    };
  },
};

export const projectShow: Command = {
  usage: "ID",
  operand: "ID",
  async run(input, { db }) {
    const project = await view(db, await requireProject(db, input.operand, "ID"));
    return { json: { project }, text: describe(project) };
  },
};

export const projectSet: Command = {
  usage:
    "ID [--plan PLAN] [--requests-per-minute N] [--concurrency N] [--schedules N] [--api-version VERSION]",
  operand: "ID",
  options: ["plan", "requests-per-minute", "concurrency", "schedules", "api-version"],
  async run(input, { db, operator }) {
    const id = parseIdOf(PROJECT_PREFIX, input.operand, "ID");
    const row = await changeProject(db, id, readChange(input), await makeCause({ db, operator }));
    if (row === null) throw new Refusal(`there is no project ${id}`);
    const project = await view(db, row);
    return { json: { project }, text: describe(project) };
  },
};

/** Finds the project that an operator names. `name` is the option or word that held the text. Throws Refusal. */
export async function requireProject(db: Database, text: string, name: string): Promise<ProjectRow> {
  const id = parseIdOf(PROJECT_PREFIX, text, name);
  const project = await findProject(db, id);
  if (project === null) throw new Refusal(`there is no project ${id}`);
  return project;
}

function readChange(input: Input): ProjectChange {
  const plan = input.option("plan");
  const apiVersion = input.option("api-version");
  const change: ProjectChange = {};
  if (plan !== undefined) change.plan = parseChoice(plan, "--plan", PLANS);
  if (apiVersion !== undefined) change.apiVersion = parseChoice(apiVersion, "--api-version", API_VERSIONS);
  for (const [option, member] of OVERRIDES) {
    const text = input.option(option);
    if (text !== undefined) change[member] = parseInteger(text, `--${option}`, 1, LIMIT_OVERRIDE_MAX);
  }
  if (Object.keys(change).length === 0) throw new Refusal("nothing was given that is to change");
  return change;
}

const OVERRIDES = [
  ["requests-per-minute", "requestsPerMinuteOverride"],
  ["concurrency", "concurrencyOverride"],
  ["schedules", "schedulesOverride"],
] as const;

type ProjectView = Awaited<ReturnType<typeof view>>;

/** A project as the API shows it, without the environment, which depends on the key. */
async function view(db: Database, row: ProjectRow) {
  const apiVersion = parseChoice(row.apiVersion, "the stored version", API_VERSIONS);
  const facts = { ...row, apiVersion, createdAt: idTimeMs(row.id) };
  const { environment: _, ...project } = viewProject(facts, "production", await countMonthRuns(db, row.no));
  return project;
}

function describe(project: ProjectView): string {
  const { limits, usage } = project;
  return table([
    ["id", project.id],
    ["name", project.name],
    ["plan", project.plan],
    ["default region", project.default_region],
    ["requests per minute", String(limits.requests_per_minute)],
    ["concurrency", String(limits.concurrency)],
    ["schedules", String(limits.schedules)],
    ["runs this month", `${usage.runs_this_period} of ${usage.runs_included} included`],
    ["API version", project.api_version],
    ["created", project.created_at],
  ]);
}
