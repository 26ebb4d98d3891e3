/** Regions and environments, spelled as in the API. Every project has both environments. */

export const REGIONS = ["us-east", "us-west", "eu-central", "ap-southeast"] as const;
export type Region = (typeof REGIONS)[number];

export const ENVIRONMENTS = ["development", "production"] as const;
export type Environment = (typeof ENVIRONMENTS)[number];

export function isRegion(text: string): text is Region {
  return (REGIONS as readonly string[]).includes(text);
}

/**
 * The number of a project within one cell. Rows and messages hold it instead of the 30 characters of the id, which keeps
 * indexes small.
 */
export type ProjectNo = number;

/** One environment of a project. Each key belongs to one environment, and shows nothing of another. */
export interface Scope {
  projectNo: ProjectNo;
  environment: Environment;
}
