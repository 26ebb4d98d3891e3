import { OPERATIONS, type OperationId } from "../../../shared/contract/operations/all.ts";
import type { Operation } from "../../../shared/contract/operations/operation.ts";
import type { Route, Routes } from "./route.ts";

/** An operation and the route that answers it. */
export interface ServedOperation {
  id: OperationId;
  operation: Operation;
  /** As the router spells it: the parameters are named `id` and `innerId`. */
  path: string;
  route: Route;
}

/** The result of matching a request: an operation, a path that lacks the method (null), or nothing. */
export type RouteMatch = { allow: string; served: ServedOperation | null } | "nothing";

/** The operations of one path. */
export interface ServedPath {
  path: string;
  operations: readonly ServedOperation[];
  /** The value of an Allow header. */
  allow: string;
}

export function tabulateRoutes(routes: Routes): ServedPath[] {
  const all = (Object.keys(OPERATIONS) as OperationId[]).map((id) => {
    const operation = OPERATIONS[id];
    const path = operation.path.replace(/\{\w+\}/, ":id").replace(/\{\w+\}/, ":innerId");
    return { id, operation, path, route: routes[id] };
  });
  return [...new Set(all.map(({ path }) => path))].map((path) => {
    const operations = findOperations(path, all);
    return { path, operations, allow: allowOf(operations) };
  });
}

export function operationOf(match: RouteMatch): OperationId | null {
  return match === "nothing" ? null : (match.served?.id ?? null);
}

/** A path that also fits another path with a parameter, as /v2/jobs/batch fits /v2/jobs/:id, has the methods of both. */
function findOperations(path: string, all: readonly ServedOperation[]): ServedOperation[] {
  const own = all.filter((served) => served.path === path);
  const methods = own.map(({ operation }) => operation.method);
  const others = all.filter((served) => {
    const pattern = new RegExp(`^${served.path.replaceAll(/:\w+/g, "[^/]+")}$`);
    return served.path !== path && pattern.test(path) && !methods.includes(served.operation.method);
  });
  return [...own, ...others];
}

function allowOf(operations: readonly ServedOperation[]): string {
  const methods = operations.flatMap(({ operation: { method } }) =>
    method === "GET" ? ["GET", "HEAD"] : [method],
  );
  return methods.sort().join(", ");
}
