import type { TerminalStatus } from "../domain/job.ts";
import { PLANS, type Plan } from "../domain/plan.ts";
import { RUN_STATUSES, type RunStatus } from "../domain/run.ts";
import { ENVIRONMENTS, type Environment, REGIONS, type Region } from "../domain/scope.ts";

/** The small numbers that stand for the API's words in the hot tables. A number, once used, keeps its meaning. */

export const ENDED_STATUSES: readonly TerminalStatus[] = ["succeeded", "failed", "canceled"];

export const regionCode = (region: Region): number => REGIONS.indexOf(region);
export const environmentCode = (environment: Environment): number => ENVIRONMENTS.indexOf(environment);
export const runStatusCode = (status: RunStatus): number => RUN_STATUSES.indexOf(status);
export const endedStatusCode = (status: TerminalStatus): number => ENDED_STATUSES.indexOf(status);
/** Where a project's runs are kept. A greater class is kept longer: a test holds that. */
export const retentionClassOf = (plan: Plan): number => PLANS.indexOf(plan);

export const regionOf = (code: number): Region => named(REGIONS, code);
export const environmentOf = (code: number): Environment => named(ENVIRONMENTS, code);
export const runStatusOf = (code: number): RunStatus => named(RUN_STATUSES, code);
export const endedStatusOf = (code: number): TerminalStatus => named(ENDED_STATUSES, code);

function named<T>(names: readonly T[], code: number): T {
  const name = names[code];
  if (name === undefined) throw new Error(`unknown code ${code} in a row`);
  return name;
}
