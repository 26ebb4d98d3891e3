import { ENVIRONMENTS } from "../../../shared/domain/scope.ts";

/**
 * The addresses of the console. `/` is its door. Everything else of it is below `/console`, where the API has nothing:
 *
 *   /console/{environment}/{page}            a view; its filters are the query string
 *   /console/{environment}/{page}/{id}...    one thing
 *   /console/assets/{name}-{hash}.{ending}   what the pages are made of
 *
 * The environment is in the address, so that a shared link never opens in the other one. No address holds a key.
 */
export const CONSOLE_PATH = "/console";
export const ASSETS_PATH = `${CONSOLE_PATH}/assets`;

/** The first step behind the environment. */
export const PAGE_NAMES = [
  "overview",
  "jobs",
  "runs",
  "schedules",
  "bulk",
  "webhooks",
  "flows",
  "hosts",
  "usage",
  "keys",
] as const;
export type PageName = (typeof PAGE_NAMES)[number];

const PATTERN = new RegExp(
  `^${CONSOLE_PATH}(?:/|/(?:${ENVIRONMENTS.join("|")})(?:/|/(?:${PAGE_NAMES.join("|")})(?:/.*)?)?)?$`,
);

/** Whether the path, as it was sent, is that of a view. */
export function isView(path: string): boolean {
  return path === "/" || PATTERN.test(path);
}
