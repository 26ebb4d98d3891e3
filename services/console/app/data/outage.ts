import { outage } from "./answers.ts";
import { sessionState } from "./session.ts";

const ASK_MS = 3_000;
let isAsking = false;

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
  // A gateway that is silent is not asked anew until a request to it has run out of time.
  if (isAsking || document.hidden || state.kind !== "open") return;
  isAsking = true;
  const ended = () => {
    isAsking = false;
  };
  // The banner already tells of a failure.
  state.session.client.project.get().then(ended, ended);
}
