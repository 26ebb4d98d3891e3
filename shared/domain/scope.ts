/** Where a thing lives: its region, and which of a project's two environments. Both are spelled as in the API. */

export const REGIONS = ["us-east", "us-west", "eu-central", "ap-southeast"] as const;
export type Region = (typeof REGIONS)[number];

export const ENVIRONMENTS = ["development", "production"] as const;
export type Environment = (typeof ENVIRONMENTS)[number];

export function isRegion(text: string): text is Region {
  return (REGIONS as readonly string[]).includes(text);
}

/**
 * The number that stands for a project inside one cell: rows and messages carry it in place of the 30
 * characters of its id, which keeps the indexes that every job pays for small.
 */
export type ProjectNo = number;

/** One environment of a project: each key has one, and nothing of another is ever seen through it. */
export interface Scope {
  projectNo: ProjectNo;
  environment: Environment;
}
