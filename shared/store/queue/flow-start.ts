/**
 * When the rate of a key (`k`, a row of flow_keys) lets the next attempt start; null if it keeps none from starting now. The
 * instants of its starts are in order, and mostly one start is noted at each. Where more are, the latest that is followed by as
 * many as the rate has, itself counted, is searched.
 */
export const nextStartOf = (k: string): string => `(
  SELECT nullif(greatest(latest + ${k}.rate_seconds * interval '1 s', now()), now())
    FROM (SELECT CASE WHEN ${k}.started <@ '{1}' THEN ${k}.started_at[cardinality(${k}.started) - ${k}.rate_count + 1]
                      ELSE (SELECT max(at)
                              FROM (SELECT at, all_starts - sum(n) OVER (ROWS UNBOUNDED PRECEDING) + n AS since
                                      FROM (SELECT unnest(${k}.started_at) AS at, unnest(${k}.started) AS n) starts
                                     CROSS JOIN (SELECT sum(n) AS all_starts FROM unnest(${k}.started) AS n) total) s
                             WHERE since >= ${k}.rate_count) END AS latest) l)`;
