import { parseArgs } from "node:util";

/** The words behind `npm start --`. */
export interface Words {
  /** Start over: remove the data that is there. */
  fresh: boolean;
  /** Do so without asking. */
  yes: boolean;
  /** Live in a time of its own, which can be put ahead. */
  testClock: boolean;
}

/** Reads the words. If one is wrong, a sentence says so and the process ends with 2, as for wrong settings. */
export function readWordsOrExit(words: readonly string[]): Words {
  try {
    const { values } = parseArgs({
      args: [...words],
      options: {
        fresh: { type: "boolean" },
        yes: { type: "boolean" },
        "test-clock": { type: "boolean" },
      },
    });
    const { fresh = false, yes = false, "test-clock": testClock = false } = values;
    if (yes && !fresh) throw new Error("--yes answers the question of --fresh, which is not given.");
    return { fresh, yes, testClock };
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\nnpm start -- [--fresh [--yes]] [--test-clock]\n`);
    process.exit(2);
  }
}
