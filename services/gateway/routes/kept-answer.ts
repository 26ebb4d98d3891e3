import type { FirstAnswer } from "../../../shared/store/resources/idempotency.ts";
import type { ApiAnswer } from "../request/answer.ts";

/** The answer that was kept with an Idempotency-Key. `textOf` reads what was kept. */
export function keptAnswer(
  status: number,
  { answer }: FirstAnswer,
  textOf = (kept: Buffer) => kept.toString(),
): ApiAnswer {
  if (answer === null) throw new Error("a kept answer is missing");
  return { status, text: textOf(answer) };
}
