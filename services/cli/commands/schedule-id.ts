import type { Input, Session } from "../command.ts";

export const isScheduleId = (word: string) => /^sch_[0-9a-z]{26}$/.test(word);

/** The id of a schedule that is given by its id or its name. */
export async function scheduleIdOf<Word extends string | undefined>(
  word: Word,
  { client, signal }: Pick<Session, "client" | "signal">,
): Promise<Word> {
  if (word === undefined || isScheduleId(word)) return word;
  return (await client().schedules.getByName(word, { signal })).id as Word;
}

/** Does something with the schedule that the first operand means. */
export async function onSchedule<Result>(
  { operands: [word = ""] }: Input,
  session: Session,
  act: (id: string, options: { signal: AbortSignal }) => Promise<Result>,
): Promise<Result> {
  return act(await scheduleIdOf(word, session), { signal: session.signal });
}
