/** The kinds of jobs of a cell. Shares are of all jobs. */
export interface Mix {
  /**
   * The share of jobs that schedules create. `batched` is the share that requests create 100 at a time. Requests create
   * the rest one by one.
   */
  fired: number;
  batched: number;
  /** Attempts beyond the first, for each job. */
  retries: number;
  /** Webhook deliveries for each job. */
  webhooks: number;
  /** The share of requests to customers' hosts that open a connection with TLS. */
  newConnections: number;
  /** How long a customer's host takes. */
  attemptMs: number;
  /** How many days the plan shows runs. */
  runDays: number;
}

/** The mix of the page's tables. No customer has been measured yet: use your own figures in its place. */
export const REFERENCE: Mix = {
  fired: 0.1,
  batched: 0.2,
  retries: 0.05,
  webhooks: 0.5,
  newConnections: 0.25,
  attemptMs: 500,
  runDays: 30,
};

/** The share of a minute's firings that fall on the full minute: people write `0 * * * *`. */
export const FIRED_AT_FULL_MINUTE = 0.25;

export const RATES = [100, 1_000, 10_000, 100_000];
