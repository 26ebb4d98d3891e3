/**
 * When the rate of a key (`k`, a row of flow_keys) lets the next attempt start; null if one may start now. The instants of the
 * key's starts are in order, and mostly each has one start. Otherwise the expression searches for the latest instant that has
 * at least rate_count starts from it on.
 */
export const nextStartOf = (k: string): string => `(
  SELECT nullif(greatest(latest + ${k}.rate_seconds * interval '1 s', now()), now())
    FROM (SELECT CASE WHEN ${k}.started <@ '{1}' THEN ${k}.started_at[cardinality(${k}.started) - ${k}.rate_count + 1]
                      ELSE (SELECT max(at)
                              FROM (SELECT at, all_starts - sum(n) OVER (ROWS UNBOUNDED PRECEDING) + n AS since
                                      FROM (SELECT unnest(${k}.started_at) AS at, unnest(${k}.started) AS n) starts
                                     CROSS JOIN (SELECT sum(n) AS all_starts FROM unnest(${k}.started) AS n) total) s
                             WHERE since >= ${k}.rate_count) END AS latest) l)`;
