/** When the rate of a key (`k`, a row of flow_keys) lets the next attempt start; null if it keeps none from starting now. */
export const nextStartOf = (k: string): string => `(
  SELECT nullif(greatest(max(s.at) + ${k}.rate_seconds * interval '1 s', now()), now())
    FROM (SELECT at, sum(count) OVER (ORDER BY at DESC) AS since FROM unnest(${k}.started_at, ${k}.started) AS s (at, count)) s
   WHERE s.since >= ${k}.rate_count)`;
