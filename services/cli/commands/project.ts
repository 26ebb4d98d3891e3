import { PROJECT_NAME_CHARACTERS_MAX } from "../../../shared/domain/name.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import { OLD_SECRET_HOURS } from "../../../shared/domain/webhook.ts";
import { type Command, shown } from "../command.ts";
import { definedOf, wordOf } from "../input.ts";
import { insights } from "./insights.ts";

const REGION_OPTION = { value: "REGION", about: REGIONS.join(", ") };

export const PROJECT_COMMANDS: Record<string, Command> = {
  project: {
    about: "show the project of the key",
    run: async (_, { client, signal }) => shown(client().project.get({ signal })),
  },
  "project edit": {
    about:
      "change the project's name, the region of jobs that name none, or whether hosts that are down are spared",
    options: {
      name: { value: "NAME", about: `up to ${PROJECT_NAME_CHARACTERS_MAX} characters` },
      "default-region": REGION_OPTION,
      "park-failing-hosts": { value: "true|false", about: "park what is due at hosts that are down" },
    },
    async run(input, { client, signal }) {
      const parks = wordOf(input, "park-failing-hosts", ["true", "false"]);
      const changes = definedOf({
        name: input.option("name"),
        default_region: wordOf(input, "default-region", REGIONS),
        park_failing_hosts: parks === undefined ? undefined : parks === "true",
      });
      return shown(client().project.update(changes, { signal }));
    },
  },
  usage: {
    about: "show what the project has used of a month's runs",
    options: {
      period: { value: "YYYY-MM", about: "without it this month" },
      region: { ...REGION_OPTION, about: `only what ran there: ${REGION_OPTION.about}` },
    },
    async run(input, { client, signal }) {
      const query = definedOf({ period: input.option("period"), region: wordOf(input, "region", REGIONS) });
      return shown(client().project.usage(query, { signal }));
    },
  },
  insights,
  "signing-secret": {
    about: "show the end of the secret that signs attempts of jobs",
    run: async (_, { client, signal }) => shown(client().project.signingSecret({ signal })),
  },
  "signing-secret rotate": {
    about: `make another one, which is shown this once; both sign for ${OLD_SECRET_HOURS} hours`,
    run: async (_, { client, signal }) =>
      shown(client().project.rotateSigningSecret({ signal }), "The secret is shown this once."),
  },
};
