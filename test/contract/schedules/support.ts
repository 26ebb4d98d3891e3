import type { NewSchedule } from "../../../shared/client/index.ts";
import { until } from "../../runtime-contract/until.ts";
import { TARGET_URL, type TestGateway, type TestProject } from "../../support/gateway.ts";

let lastName = 0;

/** A schedule with a name of its own, whose next firing is beyond the test. */
export function newSchedule(wish: Partial<NewSchedule> = {}): NewSchedule {
  return { name: `schedule ${++lastName}`, cron: "0 0 1 1 *", target_url: TARGET_URL, ...wish };
}

/** The next firing of `newSchedule`. */
export function nextNewYear(): string {
  return new Date(Date.UTC(new Date().getUTCFullYear() + 1, 0)).toISOString();
}

/** The delay is less than the worker looks ahead, and more than a request takes on a busy machine. */
const SOON_SECONDS = 4;

/**
 * Acts with an expression that fires within seconds, and next a minute later. Acts again where the machine was held up
 * until that instant had passed.
 */
export async function actSoon<Result>(act: (cronOfSoon: () => string) => Promise<Result>): Promise<Result> {
  for (;;) {
    let instant = Number.NaN;
    const result = await act(() => {
      instant = Math.floor(Date.now() / 1_000 + SOON_SECONDS) * 1_000;
      return `${new Date(instant).getUTCSeconds()} * * * * *`;
    });
    if (Date.now() < instant) return result;
  }
}

/** Acts while the project is locked, so that an instant passes while the act waits for its turn. */
export async function passInstant<Result>(
  gateway: TestGateway,
  project: TestProject,
  act: (cron: string) => Promise<Result>,
): Promise<[instant: number, result: Result]> {
  // Begins shortly before a new second, so that the wait is short.
  await until(() => Date.now() % 1_000 > 500 && Date.now() % 1_000 < 700);
  const instant = Math.ceil(Date.now() / 1_000) * 1_000;
  await gateway.query("BEGIN");
  await gateway.query("SELECT FROM projects WHERE no = $1 FOR NO KEY UPDATE", [project.no]);
  const acting = act(`${new Date(instant).getUTCSeconds()} * * * * *`);
  await until(() => Date.now() > instant);
  await gateway.query("COMMIT");
  return [instant, await acting];
}
