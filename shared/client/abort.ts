const actsOf = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Calls `act` when the signal is aborted, unless the returned function was called before. A signal gets one listener,
 * however many requests share it: at the eleventh Node would warn of a leak.
 */
export function onAbort(signal: AbortSignal | undefined, act: () => void): () => void {
  if (signal === undefined) return () => undefined;
  const acts = actsOf.get(signal) ?? watch(signal);
  acts.add(act);
  return () => acts.delete(act);
}

function watch(signal: AbortSignal): Set<() => void> {
  const acts = new Set<() => void>();
  actsOf.set(signal, acts);
  signal.addEventListener("abort", () => {
    for (const act of acts) act();
  });
  return acts;
}
