import type { ListView } from "../contract/list.ts";
import type { Call } from "./answer.ts";
import type { ClientRequest, Send } from "./send.ts";

/** `next_cursor` is null at the end of the results. */
export type Page<Item> = ListView<Item>;

/**
 * A list as it is walked from the moment of its call, newest first. Awaited it is the first page; iterated over it is
 * every item of all pages, of which it holds one at a time. What is added meanwhile does not appear.
 */
export interface List<Item> extends Call<Page<Item>>, AsyncIterable<Item> {
  pages(): AsyncIterable<Page<Item>>;
}

export function walkList<Item>(send: Send, request: ClientRequest): List<Item> {
  const first = send<Page<Item>>(request);
  // A walk may begin later, or never: only then, if at all, is there anybody to hear of a failure.
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
