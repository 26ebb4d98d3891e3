import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import type { NewWebhook, WebhookEvent } from "../../../shared/client/index.ts";
import { receive, toNode } from "../../../shared/client/receive/index.ts";
import type { Command } from "../command.ts";

const DESCRIPTION = "jobwheel webhooks listen";
/** The time after Ctrl-C in which the service may still tell the id of the endpoint and take it away. */
const ENDING_MS = 10_000;

/** A local endpoint, which exists as long as the command runs. */
export const listen: Command = {
  about: "show events as they come, verified, until Ctrl-C; --url is where a tunnel leads to --port",
  options: {
    event: { value: "TYPE", about: "without it job.succeeded and job.failed", multiple: true },
    port: { value: "N", about: "where it listens on this machine; without it a free one" },
    url: { value: "URL", about: "the public address of a tunnel to that port" },
    count: { value: "N", about: "end after so many events" },
  },
  async run(input, { client, signal, tell, note, progress }) {
    const { webhooks } = client();
    let take: ReturnType<typeof toNode> | undefined;
    const server = createServer((request, response) => {
      if (take === undefined) response.writeHead(503).end();
      else void take(request, response);
    });
    await new Promise<void>((listening, failed) => {
      server.once("error", failed);
      server.listen(input.count("port") ?? 0, "127.0.0.1", listening);
    });
    const { port } = server.address() as AddressInfo;
    const url = input.option("url") ?? `http://127.0.0.1:${port}/`;
    const events = (input.options("event") ?? ["job.succeeded", "job.failed"]) as NewWebhook["events"];
    const givenUp = new AbortController();
    let ending: NodeJS.Timeout | undefined;
    signal.addEventListener("abort", () => {
      ending = setTimeout(() => {
        note("the service does not answer: jobwheel webhooks list shows whether the endpoint is still there");
        givenUp.abort();
      }, ENDING_MS);
    });
    signal.throwIfAborted();
    let leftCount = input.count("count") ?? Number.POSITIVE_INFINITY;
    try {
      const endpoint = { url, events, description: DESCRIPTION };
      // Ctrl-C does not end this request: the endpoint may exist by then, and only the answer tells its id.
      const { id, secret } = await webhooks.create(endpoint, { signal: givenUp.signal });
      progress(`${id} listens at ${url} for ${events.join(", ")}; Ctrl-C ends it`);
      await new Promise<void>((end) => {
        if (signal.aborted) end();
        signal.addEventListener("abort", () => end());
        take = toNode(
          receive({
            secrets: secret,
            onEvent({ event, text }) {
              tell(text, summaryOf(event));
              if (--leftCount === 0) end();
            },
            onRefusal: ({ message }) => progress(`refused: ${message}`),
          }),
        );
      });
      await webhooks.delete(id, { signal: givenUp.signal });
    } finally {
      clearTimeout(ending);
      server.close();
    }
    return { json: "", text: "" };
  },
};

function summaryOf({ created_at, type, data }: WebhookEvent): string {
  const subject = "job" in data ? `${data.job.id} ${data.job.target_url}` : JSON.stringify(data);
  const error = "run" in data && data.run?.error ? ` ${data.run.error}` : "";
  return `${created_at} ${type} ${subject}${error}`.replace(/\p{C}+/gu, " ");
}
