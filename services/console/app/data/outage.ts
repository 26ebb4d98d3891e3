import { outage } from "./answers.ts";
import { sessionState } from "./session.ts";

const ASK_MS = 3_000;

/** While the service is gone, asks for the project now and then, until an answer ends the outage (`watchAnswers`). */
export function watchOutage(): void {
  let timer: ReturnType<typeof setInterval> | undefined;
  outage.subscribe((value) => {
    clearInterval(timer);
    if (value !== null) timer = setInterval(ask, ASK_MS);
  });
}

function ask(): void {
  const state = sessionState.peek();
  if (document.hidden || state.kind !== "open") return;
  // The banner already tells of a failure.
  state.session.client.project.get().catch(() => undefined);
}
