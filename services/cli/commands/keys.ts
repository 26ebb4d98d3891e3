import type { KeyRotation, NewApiKey } from "../../../shared/client/index.ts";
import { KEY_SCOPES } from "../../../shared/domain/key.ts";
import { OVERLAP_HOURS_DEFAULT, OVERLAP_HOURS_MAX } from "../../../shared/domain/key-life.ts";
import { type Command, listed, PAGE_OPTIONS, shown } from "../command.ts";
import { definedOf, pageOf, wordOf } from "../input.ts";

const SHOWN_ONCE = "The key is shown this once.";

export const KEY_COMMANDS: Record<string, Command> = {
  "keys create": {
    about: "make a key of the same project and environment; it is shown this once",
    options: {
      name: { value: "NAME", about: "a label" },
      scope: { value: "SCOPE", about: KEY_SCOPES.join(", "), required: true },
      "expires-in-hours": { value: "N", about: "without it, it expires with the key that asks" },
    },
    async run(input, { client, signal }) {
      const key = {
        scope: wordOf(input, "scope", KEY_SCOPES) as NewApiKey["scope"],
        ...definedOf({ name: input.option("name"), expires_in_hours: input.count("expires-in-hours") }),
      };
      return shown(client().keys.create(key, { signal }), SHOWN_ONCE);
    },
  },
  "keys list": {
    about: "list the keys of the project and environment, newest first",
    options: PAGE_OPTIONS,
    run: async (input, { client, signal }) =>
      listed(
        client().keys.list(pageOf(input), { signal }),
        ...["id", "name", "scope", "created_at", "last_used_at", "expires_at"],
      ),
  },
  "keys rotate": {
    about: "make the successor of a key; it is shown this once",
    operands: ["KEY_ID"],
    options: {
      "overlap-hours": {
        value: "N",
        about: `how long the key works beside it: 0 to ${OVERLAP_HOURS_MAX}, without it ${OVERLAP_HOURS_DEFAULT}`,
      },
    },
    async run(input, { client, signal }) {
      const rotation: KeyRotation = definedOf({ overlap_hours: input.count("overlap-hours") });
      return shown(client().keys.rotate(input.operands[0] ?? "", rotation, { signal }), SHOWN_ONCE);
    },
  },
  "keys delete": {
    about: "end a key at once",
    operands: ["KEY_ID"],
    run: async ({ operands: [id = ""] }, { client, signal }) => shown(client().keys.delete(id, { signal })),
  },
};
