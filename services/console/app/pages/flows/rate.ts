import type { FlowKey } from "../../../../../shared/client/flows.ts";

/** Such as `5 in 60 s`. */
export function rateText(rate: FlowKey["rate"]): string {
  return rate === null ? "no limit" : `${rate.count} in ${rate.per_seconds} s`;
}

/** The rate that two fields of a form say; null if both are empty. The API tells what is missing. */
export function rateOf(count: string, perSeconds: string): FlowKey["rate"] {
  if (count === "" && perSeconds === "") return null;
  return { count: Number(count), per_seconds: Number(perSeconds) };
}
