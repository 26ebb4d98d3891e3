import type { NewSchedule } from "../../../shared/client/index.ts";
import { TARGET_URL } from "../../support/gateway.ts";

let lastName = 0;

/** A schedule of a name of its own, which fires next while nobody looks. */
export function newSchedule(wish: Partial<NewSchedule> = {}): NewSchedule {
  return { name: `schedule ${++lastName}`, cron: "0 0 1 1 *", target_url: TARGET_URL, ...wish };
}

/** What `newSchedule` fires next for. */
export function nextNewYear(): string {
  return new Date(Date.UTC(new Date().getUTCFullYear() + 1, 0)).toISOString();
}
