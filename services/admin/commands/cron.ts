import { timestampOf } from "../../../shared/contract/timestamp.ts";
import { checkGap, parseCron } from "../../../shared/domain/cron/cron.ts";
import { firingsAfter } from "../../../shared/domain/cron/firings.ts";
import { minGapSeconds } from "../../../shared/domain/cron/gap.ts";
import { localTimeOf, parseZone } from "../../../shared/domain/cron/zone.ts";
import { ApiError, invalidRequest } from "../../../shared/domain/errors.ts";
import { parseInstant } from "../../../shared/domain/job.ts";
import { type Calculation, type Input, type Output, parseInteger, Refusal, table } from "../command.ts";

const COUNT_DEFAULT = "5";
const COUNT_MAX = 1_000;

/** Tells what the creation of a schedule would answer, and when the schedule would fire. */
export const cronPreview: Calculation = {
  usage: "--cron EXPRESSION [--timezone ZONE] [--from ISO] [--count N]",
  options: ["cron", "timezone", "from", "count"],
  calculate(input) {
    try {
      return preview(input);
    } catch (error) {
      const refusal = error instanceof Refusal ? invalidRequest(error.message) : error;
      if (!(refusal instanceof ApiError)) throw error;
      const { code, message } = refusal;
      return { json: { error: { code, message } }, text: `${code}: ${message}`, isRefusal: true };
    }
  },
};

function preview(input: Input): Output {
  const cron = parseCron(input.required("cron"));
  const zone = parseZone(input.option("timezone") ?? "UTC");
  checkGap(cron);
  const count = parseInteger(input.option("count") ?? COUNT_DEFAULT, "--count", 1, COUNT_MAX);
  const after = readInstant(input.option("from"));

  const firings = [...firingsAfter(cron, zone, after).take(count)];
  const gapSeconds = minGapSeconds(cron);
  return {
    json: { firings: firings.map(({ at }) => timestampOf(at)), min_gap_seconds: gapSeconds },
    text: table([
      ["UTC", zone.name, ""],
      ...firings.map(({ at, movedByClockChange }) => [
        timestampOf(at),
        localTimeOf(zone, at),
        movedByClockChange ? "moved by a clock change" : "",
      ]),
      ["smallest gap", `${gapSeconds} s`],
    ]),
  };
}

function readInstant(text: string | undefined): number {
  if (text === undefined) return Date.now();
  const at = parseInstant(text);
  if (at === null) throw new Refusal("--from must be an ISO 8601 date and time with Z or an offset");
  return at;
}
