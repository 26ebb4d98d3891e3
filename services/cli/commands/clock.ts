import { type Command, shown } from "../command.ts";

/** The clock of an instance that was started with `npm start -- --test-clock`. */
export const CLOCK_COMMANDS: Record<string, Command> = {
  clock: {
    about: "show a test clock: npm start -- --test-clock has one",
    run: async (_, { client, signal }) => shown(client().testClock.get({ signal })),
  },
  "clock advance": {
    about: "put a test clock ahead through all that is due: by 90s, 5m, 48h or 30d, or to an instant",
    operands: ["BY_OR_TO"],
    async run({ operands: [asked = ""] }, { client, progress, signal }) {
      progress(`walking ${asked} ahead`);
      const isInstant = /^[0-9]{4}-/.test(asked);
      return shown(client().testClock.advance(isInstant ? { to: asked } : { by: asked }, { signal }));
    },
  },
};
