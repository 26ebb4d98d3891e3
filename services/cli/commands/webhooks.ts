import type { NewWebhook } from "../../../shared/client/index.ts";
import { type Command, listed, shown, UsageError } from "../command.ts";
import { definedOf } from "./jobs.ts";
import { listen } from "./listen.ts";

const page = { limit: { type: "string" }, cursor: { type: "string" } } as const;

export const WEBHOOK_COMMANDS: Record<string, Command> = {
  "webhooks create": {
    about: "create an endpoint; its secret is shown this once",
    operands: ["URL"],
    options: { event: { type: "string", multiple: true }, description: { type: "string" } },
    async run(input, { client, signal }) {
      const [url = ""] = input.operands;
      const fields = {
        url,
        events: eventsOf(input.options("event")),
        ...definedOf({ description: input.option("description") }),
      };
      return shown(client().webhooks.create(fields, { signal }));
    },
  },
  "webhooks list": {
    about: "list endpoints, newest first",
    options: page,
    async run(input, { client, signal }) {
      const query = definedOf({ limit: input.count("limit"), cursor: input.option("cursor") });
      return listed(client().webhooks.list(query, { signal }), "id", "status", "events", "url");
    },
  },
  "webhooks test": {
    about: "send a signed sample to an endpoint",
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().webhooks.test(id, { signal })),
  },
  "webhooks deliveries": {
    about: "list what was sent to an endpoint, newest first",
    operands: ["WEBHOOK_ID"],
    options: page,
    async run(input, { client, signal }) {
      const query = definedOf({ limit: input.count("limit"), cursor: input.option("cursor") });
      const [id = ""] = input.operands;
      return listed(
        client().webhooks.deliveries(id, query, { signal }),
        "id",
        "status",
        "event_id",
        "created_at",
      );
    },
  },
  "webhooks delete": {
    about: "delete an endpoint",
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().webhooks.delete(id, { signal })),
  },
  "webhooks listen": listen,
};

/** The service says which types there are. */
function eventsOf(given: string[] | undefined): NewWebhook["events"] {
  if (given === undefined)
    throw new UsageError("--event is needed, such as --event job.failed, once for each type");
  return given as NewWebhook["events"];
}
