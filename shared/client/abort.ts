const actsOf = new WeakMap<AbortSignal, Set<() => void>>();

/**
 * Does something when the signal is aborted, until what it returns is called. However many requests share a signal, it
 * has one listener: at the eleventh Node would warn of a leak.
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
