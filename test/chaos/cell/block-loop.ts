import { readFileSync } from "node:fs";

/**
 * Loaded into each service of a chaos cell before its own code: at SIGUSR2 its event loop stands still for as many
 * milliseconds as the file says, while its other threads and its connections go on.
 */
process.on("SIGUSR2", () => Bun.sleepSync(Number(readFileSync(process.env.BLOCK_MS_FILE ?? "", "utf8"))));
