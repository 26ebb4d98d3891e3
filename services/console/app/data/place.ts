import { computed, signal } from "@preact/signals";
import { ENVIRONMENTS, type Environment } from "../../../../shared/domain/scope.ts";
import { CONSOLE_PATH, PAGE_NAMES, type PageName } from "../paths.ts";

/** The visitor's place, as the address bar says it. Views keep their filters in `query`. */
export interface Place {
  /** Null at the door. */
  environment: Environment | null;
  /** Null for an address that is no page. */
  page: PageName | null;
  /** The steps behind the page, decoded, such as the id of a job. */
  rest: readonly string[];
  query: URLSearchParams;
}

/** The gateway's address, with a slash at its end. A proxy may have put the gateway below a path of its own. */
export const BASE = new URL("../../", import.meta.url).href;
const BASE_PATH = new URL(BASE).pathname;

export const place = signal<Place>(readPlace());
/** The parts of the place that tell one page from another. Filters are not among them. */
export const pageKey = computed(() => {
  const { environment, page, rest } = place.value;
  return [environment, page, ...rest].join("/");
});

addEventListener("popstate", () => {
  place.value = readPlace();
});

export type Query = Record<string, string | undefined>;

/** The address of a view. Filters that are empty are left out. */
export function addressOf(
  environment: Environment,
  page: PageName,
  rest: readonly string[] = [],
  query: Query = {},
): string {
  const steps = [CONSOLE_PATH.slice(1), environment, page, ...rest.map(encodeURIComponent)];
  const filters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) filters.set(name, value);
  return `${BASE_PATH}${steps.join("/")}${filters.size === 0 ? "" : `?${filters}`}`;
}

/** The address of a view in the environment where the visitor is. */
export function hrefOf(page: PageName, rest: readonly string[] = [], query: Query = {}): string {
  return addressOf(place.value.environment ?? "development", page, rest, query);
}

export function goTo(href: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, "", href);
  else history.pushState(null, "", href);
  place.value = readPlace();
  if (!replace) scrollTo(0, 0);
}

/** The filters of the view that are set. */
export function filtersOf<Name extends string>(names: readonly Name[]): Partial<Record<Name, string>> {
  const { query } = place.value;
  const set = names.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""] as const] : []));
  return Object.fromEntries(set) as Partial<Record<Name, string>>;
}

/** Changes filters of the view. They replace the address, so that Back leaves the view. */
export function setFilters(changes: Query): void {
  const { environment, page, rest, query } = place.value;
  if (environment === null || page === null) return;
  goTo(addressOf(environment, page, rest, { ...Object.fromEntries(query), ...changes }), { replace: true });
}

function readPlace(): Place {
  const query = new URLSearchParams(location.search);
  const path = location.pathname.slice(BASE_PATH.length);
  const [, environment, page, ...rest] = path.split("/").map(decode);
  return {
    environment: ENVIRONMENTS.find((name) => name === environment) ?? null,
    page: page ? (PAGE_NAMES.find((name) => name === page) ?? null) : "overview",
    rest: rest.filter((step) => step !== ""),
    query,
  };
}

function decode(step: string): string {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}
