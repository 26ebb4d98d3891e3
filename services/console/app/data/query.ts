import { useEffect, useRef, useState } from "preact/hooks";
import { joinRounds, mayRefresh, recoveries, refreshMs } from "./answers.ts";
import { live } from "./preferences.ts";
import { refused } from "./session.ts";

/** The data that a view has loaded. After a failure the view keeps the data that it had. */
export interface Query<Data> {
  data: Data | undefined;
  error: unknown;
  isLoading: boolean;
  /** Milliseconds since 1970; null before the first answer. */
  loadedAt: number | null;
  reload(): void;
}

/**
 * Loads, and loads again when `key` changes, which names everything that `load` depends on. With `requests`, the number that
 * `load` makes, it also keeps itself up to date while the page is visible.
 */
export function useQuery<Data>(
  key: string,
  load: (signal: AbortSignal) => Promise<Data>,
  { requests = 0 }: { requests?: number } = {},
): Query<Data> {
  type Loaded = Omit<Query<Data>, "reload" | "isLoading"> & { key: string };
  const nothing = (of: string): Loaded => ({ key: of, data: undefined, error: undefined, loadedAt: null });
  const [loaded, setLoaded] = useState<Loaded>(() => nothing(key));
  const [isLoading, setIsLoading] = useState(true);
  const [asked, setAsked] = useState(0);
  const recent = useRef(load);
  recent.current = load;
  const current = loaded.key === key ? loaded : nothing(key);
  const failed = useRef(false);
  failed.current = current.error !== undefined;

  useEffect(() => {
    const ending = new AbortController();
    setIsLoading(true);
    recent.current(ending.signal).then(
      (data) => {
        if (ending.signal.aborted) return;
        setLoaded({ key, data, error: undefined, loadedAt: Date.now() });
        setIsLoading(false);
      },
      (error: unknown) => {
        if (ending.signal.aborted) return;
        setLoaded((before) => ({ ...(before.key === key ? before : nothing(key)), error }));
        setIsLoading(false);
      },
    );
    return () => ending.abort();
  }, [key, asked]);

  const reload = () => setAsked((count) => count + 1);
  useReloads(reload, failed, requests, () => !isLoading);
  return { ...current, isLoading, reload };
}

/**
 * Calls `reload` now and then (`requests` > 0) while `isWanted` holds, and once an outage or a refused key is over if the last
 * try has failed. A reload ends the load that is under way, so `isWanted` must not hold during one: a service that is slower than
 * the refreshes would never get to answer.
 */
export function useReloads(
  reload: () => void,
  failed: { current: boolean },
  requests: number,
  isWanted: () => boolean,
): void {
  const recent = useRef({ reload, isWanted });
  recent.current = { reload, isWanted };
  useEffect(() => {
    const stops = [recoveries, refused].map((signal) =>
      signal.subscribe(() => {
        if (failed.current && refused.peek() === null) recent.current.reload();
      }),
    );
    return () => {
      for (const stop of stops) stop();
    };
  }, []);
  useEffect(() => {
    if (requests === 0) return;
    const leave = joinRounds(requests);
    let timer: ReturnType<typeof setTimeout>;
    const wait = () => {
      timer = setTimeout(() => {
        const isOn = live.peek() === "on" && refused.peek() === null;
        if (isOn && mayRefresh() && recent.current.isWanted()) recent.current.reload();
        wait();
      }, refreshMs());
    };
    wait();
    return () => {
      leave();
      clearTimeout(timer);
    };
  }, [requests]);
}
