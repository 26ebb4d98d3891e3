import { readFileSync } from "node:fs";

/**
 * Each service of a chaos cell loads this before its own code: at SIGUSR2 its event loop stands still for as many
 * milliseconds as the file BLOCK_MS_FILE says, while its other threads and its connections go on.
 */
process.on("SIGUSR2", () => Bun.sleepSync(Number(readFileSync(process.env.BLOCK_MS_FILE ?? "", "utf8"))));
