import type { Incoming, Reply } from "./answers.ts";

export function fromRequest(request: Request): Incoming {
  const { method, url, headers } = request;
  return { method, url, headers, body: chunksOf(request.body) };
}

export function toResponse({ status, headers, text }: Reply): Response {
  return new Response(text, { status, headers });
}

/** Not every runtime's ReadableStream can be iterated over. */
async function* chunksOf(stream: ReadableStream<Uint8Array> | null): AsyncGenerator<Uint8Array, void> {
  const reader = stream?.getReader();
  if (reader === undefined) return;
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value;
  } finally {
    // A reader that stops early wants no more of the stream.
    await reader.cancel().catch(() => undefined);
  }
}
