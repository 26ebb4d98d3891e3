import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Page } from "../../../../shared/client/list.ts";
import { useReloads } from "./query.ts";

/** A list that grows as one scrolls. */
export interface List<Item> {
  items: readonly Item[];
  idOf: (item: Item) => string;
  error: unknown;
  isLoading: boolean;
  /** Whether there is more behind `items`. */
  hasMore: boolean;
  loadedAt: number | null;
  /** Loads the next page, unless one is on its way. */
  more(): void;
  reload(): void;
}

export interface PageQuery {
  limit: number;
  cursor?: string;
}

const FIRST_PAGE = 50;
const NEXT_PAGES = 200;

interface Loaded<Item> {
  key: string;
  items: readonly Item[];
  cursor: string | null;
  error: unknown;
  loadedAt: number | null;
}

/**
 * A list of the API, newest first. It loads anew when `key` changes, which names everything that `load` depends on. With
 * `isLive` it asks for its first page now and then: new items come on top, and changed items change in place.
 */
export function useList<Item>(
  key: string,
  load: (page: PageQuery, signal: AbortSignal) => Promise<Page<Item>>,
  idOf: (item: Item) => string,
  { isLive = true }: { isLive?: boolean } = {},
): List<Item> {
  const nothing = (of: string): Loaded<Item> => {
    return { key: of, items: [], cursor: null, error: undefined, loadedAt: null };
  };
  const [loaded, setLoaded] = useState<Loaded<Item>>(() => nothing(key));
  const [isLoading, setIsLoading] = useState(true);
  const [asked, setAsked] = useState(0);
  const recent = useRef({ load, idOf });
  recent.current = { load, idOf };
  const current = loaded.key === key ? loaded : nothing(key);
  const failed = useRef(false);
  failed.current = current.error !== undefined;
  const growing = useRef<AbortController | null>(null);

  const ended = (of: string, error: unknown) => {
    setLoaded((before) => ({ ...(before.key === of ? before : nothing(of)), error }));
    setIsLoading(false);
  };

  useEffect(() => {
    const ending = new AbortController();
    setIsLoading(true);
    recent.current.load({ limit: FIRST_PAGE }, ending.signal).then(
      (page) => {
        if (ending.signal.aborted) return;
        setLoaded((before) => ({
          key,
          ...mergeFirstPage(before.key === key ? before : nothing(key), page, recent.current.idOf),
          error: undefined,
          loadedAt: Date.now(),
        }));
        setIsLoading(false);
      },
      (error: unknown) => {
        if (!ending.signal.aborted) ended(key, error);
      },
    );
    return () => ending.abort();
  }, [key, asked]);

  // A list that begins anew has another cursor. The next page of the old cursor would leave a gap behind the new rows.
  useLayoutEffect(() => {
    return () => {
      growing.current?.abort();
      growing.current = null;
    };
  }, [key, current.cursor]);

  const more = () => {
    const { cursor } = current;
    if (growing.current !== null || cursor === null) return;
    const ending = new AbortController();
    growing.current = ending;
    recent.current.load({ limit: NEXT_PAGES, cursor }, ending.signal).then(
      (page) => {
        if (ending.signal.aborted) return;
        growing.current = null;
        setLoaded((before) => {
          if (before.key !== key || before.cursor !== cursor) return before;
          return {
            ...before,
            items: [...before.items, ...page.data],
            cursor: page.next_cursor,
            error: undefined,
          };
        });
      },
      (error: unknown) => {
        if (ending.signal.aborted) return;
        growing.current = null;
        ended(key, error);
      },
    );
  };

  const reload = () => setAsked((count) => count + 1);
  useReloads(reload, failed, isLive ? 1 : 0, () => !isLoading && isAtTop());
  return {
    items: current.items,
    idOf,
    error: current.error,
    isLoading,
    hasMore: current.cursor !== null,
    loadedAt: current.loadedAt,
    more,
    reload,
  };
}

/** Whether the list may change: rows do not move under a visitor who has scrolled down to them. */
function isAtTop(): boolean {
  return scrollY < TOP_PIXELS;
}

const TOP_PIXELS = 400;

/**
 * The list with its first page as it is now. The items behind that page stay, and so does the cursor. If the list does
 * not know the page's last item, it begins anew.
 */
function mergeFirstPage<Item>(
  before: Pick<Loaded<Item>, "items" | "cursor">,
  page: Page<Item>,
  idOf: (item: Item) => string,
): Pick<Loaded<Item>, "items" | "cursor"> {
  const last = page.data.at(-1);
  const fresh = { items: page.data, cursor: page.next_cursor };
  if (last === undefined || page.next_cursor === null) return fresh;
  const lastId = idOf(last);
  const end = before.items.findIndex((item) => idOf(item) === lastId);
  if (end < 0) return fresh;
  return { items: [...page.data, ...before.items.slice(end + 1)], cursor: before.cursor };
}
