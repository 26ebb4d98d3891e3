/**
 * How the node's questions to Postgres are put together. Two statements of each at once: while one waits for its fsync
 * the next is being gathered and sent.
 */
export const BATCH = { itemsMax: 200, inFlightMax: 2 } as const;
