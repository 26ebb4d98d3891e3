/**
 * A receiver's memory of earlier requests. Each function is one atomic step and may answer at once or by a promise; if it
 * throws, the request is answered 500 and comes again. Several processes that receive for one path share one memory.
 */
export interface ReceiverMemory {
  /** Notes for `keepMs` that a request of this id is here. Answers what was noted before. */
  begin(id: string, keepMs: number): Awaitable<"new" | "begun" | "done">;
  /** Notes for `keepMs` that the request was handled; null forgets it, so that it may come again. */
  end(id: string, keepMs: number | null): Awaitable<void>;
  /**
   * Notes the number as the job's highest attempt, unless a higher one was noted before. Answers whether it was noted.
   */
  raise(jobId: string, attempt: number): Awaitable<boolean>;
}

export type Awaitable<Value> = Value | Promise<Value>;

const ENTRIES_MAX = 100_000;

/** The memory of one process, of the latest 100,000 requests and jobs. A restart forgets them. */
export function createMemory({ now = Date.now }: { now?: () => number } = {}): ReceiverMemory {
  const requests = new Map<string, { isDone: boolean; until: number }>();
  const attempts = new Map<string, number>();
  return {
    begin(id, keepMs) {
      const noted = requests.get(id);
      if (noted !== undefined && noted.until > now()) return noted.isDone ? "done" : "begun";
      note(requests, id, { isDone: false, until: now() + keepMs });
      return "new";
    },
    end(id, keepMs) {
      if (keepMs === null) requests.delete(id);
      else note(requests, id, { isDone: true, until: now() + keepMs });
    },
    raise(jobId, attempt) {
      if ((attempts.get(jobId) ?? 0) > attempt) return false;
      note(attempts, jobId, attempt);
      return true;
    },
  };
}

/** Keeps the latest ones: a map is walked in the order in which its keys were added. */
function note<Value>(notes: Map<string, Value>, key: string, value: Value): void {
  notes.delete(key);
  notes.set(key, value);
  const [oldest] = notes.size > ENTRIES_MAX ? notes.keys() : [];
  if (oldest !== undefined) notes.delete(oldest);
}
