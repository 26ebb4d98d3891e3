import type { NewWebhook } from "../../../shared/client/index.ts";
import { EVENT_TYPES, OLD_SECRET_HOURS } from "../../../shared/domain/webhook.ts";
import { type Command, listed, PAGE_OPTIONS, shown } from "../command.ts";
import { definedOf, pageOf } from "../input.ts";
import { listen } from "./listen.ts";

const SHOWN_ONCE = "The secret is shown this once.";

export const WEBHOOK_COMMANDS: Record<string, Command> = {
  "webhooks create": {
    about: "create an endpoint; its secret is shown this once",
    operands: ["URL"],
    options: {
      event: {
        value: "TYPE",
        about: `what it is told of: ${EVENT_TYPES.join(", ")}`,
        multiple: true,
        required: true,
      },
      description: { value: "TEXT", about: "a label" },
    },
    async run(input, { client, signal }) {
      const [url = ""] = input.operands;
      const fields = {
        url,
        // The service says which types there are.
        events: input.options("event") as NewWebhook["events"],
        ...definedOf({ description: input.option("description") }),
      };
      return shown(client().webhooks.create(fields, { signal }), SHOWN_ONCE);
    },
  },
  "webhooks list": {
    about: "list endpoints, newest first",
    options: PAGE_OPTIONS,
    async run(input, { client, signal }) {
      return listed(client().webhooks.list(pageOf(input), { signal }), "id", "status", "events", "url");
    },
  },
  "webhooks get": {
    about: "show an endpoint",
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().webhooks.get(id, { signal })),
  },
  "webhooks enable": {
    about: "send to an endpoint again; what was dropped meanwhile is not sent",
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().webhooks.enable(id, { signal })),
  },
  "webhooks disable": {
    about: "send nothing to an endpoint; what it is owed is dropped",
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().webhooks.disable(id, { signal })),
  },
  "webhooks rotate": {
    about: `make another secret, which is shown this once; both sign for ${OLD_SECRET_HOURS} hours`,
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().webhooks.rotate(id, { signal }), SHOWN_ONCE),
  },
  "webhooks test": {
    about: "send a signed sample to an endpoint",
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().webhooks.test(id, { signal })),
  },
  "webhooks deliveries": {
    about: "list what was sent to an endpoint, newest first",
    operands: ["WEBHOOK_ID"],
    options: PAGE_OPTIONS,
    async run(input, { client, signal }) {
      const [id = ""] = input.operands;
      return listed(
        client().webhooks.deliveries(id, pageOf(input), { signal }),
        "id",
        "status",
        "event_id",
        "created_at",
      );
    },
  },
  "webhooks retry": {
    about: "send a delivery again at once",
    operands: ["WEBHOOK_ID", "DELIVERY_ID"],
    run: async ({ operands: [id = "", delivery = ""] }, { client, signal }) =>
      shown(client().webhooks.retry(id, delivery, { signal })),
  },
  "webhooks delete": {
    about: "delete an endpoint",
    operands: ["WEBHOOK_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) =>
      shown(client().webhooks.delete(id, { signal })),
  },
  "webhooks listen": listen,
};
