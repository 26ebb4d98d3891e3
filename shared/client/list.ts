import type { ListView } from "../contract/list.ts";
import type { Call } from "./answer.ts";
import type { ClientRequest, Send } from "./send.ts";

/** `next_cursor` is null at the end of the results. */
export type Page<Item> = ListView<Item>;

/**
 * A list, newest first unless said otherwise, as of the call. Awaiting it gives the first page; iterating over it gives every
 * item of all pages and holds one page at a time. Items added meanwhile do not appear.
 */
export interface List<Item> extends Call<Page<Item>>, AsyncIterable<Item> {
  pages(): AsyncIterable<Page<Item>>;
}

export function walkList<Item>(send: Send, request: ClientRequest): List<Item> {
  const first = send<Page<Item>>(request);
  // A failure is thrown where the list is awaited or iterated over. Without either it must not be an unhandled rejection.
  first.catch(() => undefined);

  async function* pages(): AsyncGenerator<Page<Item>, void> {
    let page = await first;
    yield page;
    while (page.next_cursor !== null) {
      page = await send({ ...request, query: { ...request.query, cursor: page.next_cursor } });
      yield page;
    }
  }

  return Object.assign(first, {
    pages,
    async *[Symbol.asyncIterator]() {
      for await (const page of pages()) yield* page.data;
    },
  });
}
