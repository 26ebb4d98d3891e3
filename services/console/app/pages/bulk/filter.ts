import type { Bulk, NewBulk } from "../../../../../shared/client/bulk.ts";
import type { BulkAction } from "../../../../../shared/domain/bulk.ts";
import { instantOf } from "../../ui/form.tsx";

/** The filter of a bulk operation, as texts. */

/** Such as `status failed, tag invoices`. */
export function filterText(filter: Bulk["filter"]): string {
  if (filter.all) return "everything";
  return Object.entries(filter)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)
    .join(", ");
}

/** The members of the form, each empty where nothing is given. */
export interface FilterTexts {
  status: string;
  region: string;
  tag: string;
  schedule_id: string;
  target_host: string;
  created_after: string;
  created_before: string;
  error_contains: string;
  response_status: string;
  from: string;
  to: string;
}

const OF_JOBS = [
  "status",
  "region",
  "tag",
  "schedule_id",
  "target_host",
  "created_after",
  "created_before",
] as const;
const INSTANTS: readonly string[] = ["created_after", "created_before", "from", "to"];

/** The members that the action takes. */
export const MEMBERS: Record<BulkAction, readonly (keyof FilterTexts)[]> = {
  cancel: OF_JOBS,
  retry: [...OF_JOBS, "error_contains", "response_status"],
  backfill: ["schedule_id", "from", "to"],
};

/** An empty filter is sent as it is: the API then answers that an operation on everything has to say so. */
export function filterOf(action: BulkAction, texts: FilterTexts, isAll: boolean): NewBulk["filter"] {
  if (isAll) return { all: true };
  const given = MEMBERS[action].flatMap((name) => {
    const text = texts[name].trim();
    if (text === "") return [];
    if (INSTANTS.includes(name)) return [[name, instantOf(text) ?? text]];
    return [[name, name === "response_status" ? Number(text) : text]];
  });
  return Object.fromEntries(given);
}
