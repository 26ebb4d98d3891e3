/** What kind of jobs a cell gets. Shares are of all jobs. */
export interface Mix {
  /** Created by a schedule; of the others `batched` come 100 at a time, the rest one by one. */
  fired: number;
  batched: number;
  /** Attempts beyond the first, for each job. */
  retries: number;
  /** Webhook deliveries, for each job. */
  webhooks: number;
  /** Of all requests to customers' hosts, those that open a connection with TLS. */
  newConnections: number;
  /** How long a customer's host takes. */
  attemptMs: number;
  /** How long the plan shows runs. */
  runDays: number;
}

/** What the tables of the page are for. Nobody has measured a customer yet: put your own figures in its place. */
export const REFERENCE: Mix = {
  fired: 0.1,
  batched: 0.2,
  retries: 0.05,
  webhooks: 0.5,
  newConnections: 0.25,
  attemptMs: 500,
  runDays: 30,
};

/** Of the firings of a minute, those at its full minute: people write `0 * * * *`. */
export const FIRED_AT_FULL_MINUTE = 0.25;

export const RATES = [100, 1_000, 10_000, 100_000];
