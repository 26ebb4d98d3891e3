/** A fault put in on purpose: a text of a file is replaced by another one. `caughtBy` is the test file that must fail. */
export interface Mutant {
  name: string;
  file: string;
  /** It stands in the file once. */
  from: string;
  to: string;
  caughtBy: string;
}

const QUEUE = "shared/store/queue";

export const MUTANTS: readonly Mutant[] = [
  {
    name: "firings are not fenced by the epoch of their shard",
    file: `${QUEUE}/firings.ts`,
    from: "FROM (SELECT item.* FROM item JOIN fence USING (shard, epoch) ORDER BY schedule_id) i",
    to: "FROM (SELECT item.* FROM item ORDER BY schedule_id) i",
    caughtBy: "shared/store/resources/schedules.test.ts",
  },
  {
    name: "a firing is not compared with the instant that was read",
    file: `${QUEUE}/firings.ts`,
    from: "AND s.next_run_at = i.next_run_at AND s.cron = i.cron AND s.timezone = i.timezone",
    to: "AND s.cron = i.cron AND s.timezone = i.timezone",
    caughtBy: "shared/store/resources/schedules.test.ts",
  },
  {
    name: "a takeover does not raise the epoch",
    file: `${QUEUE}/shards.ts`,
    from: "SET epoch = s.epoch + 1, owner = $3",
    to: "SET epoch = s.epoch, owner = $3",
    caughtBy: `${QUEUE}/shards.test.ts`,
  },
  {
    name: "a lease is renewed under an epoch that is over",
    file: `${QUEUE}/shards.ts`,
    from: "WHERE s.region = h.region AND s.shard = h.shard AND s.epoch = h.epoch AND s.owner = $4\n  RETURNING",
    to: "WHERE s.region = h.region AND s.shard = h.shard\n  RETURNING",
    caughtBy: `${QUEUE}/shards.test.ts`,
  },
  {
    name: "a node that was declared dead claims, the long way",
    file: `${QUEUE}/claim.ts`,
    from: "SELECT id FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE",
    to: "SELECT id FROM nodes WHERE id = $1 FOR KEY SHARE",
    caughtBy: `${QUEUE}/claim.test.ts`,
  },
  {
    name: "a node that was declared dead claims, the short way",
    file: `${QUEUE}/claim-ordinary.ts`,
    from: "WHERE (SELECT true FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE)",
    to: "WHERE (SELECT true FROM nodes WHERE id = $1 FOR KEY SHARE)",
    caughtBy: `${QUEUE}/claim.test.ts`,
  },
  {
    name: "a claim does not look whether the attempt is owed still",
    file: `${QUEUE}/claim-ordinary.ts`,
    from: "AND o.attempt = i.attempt AND o.run_id IS NULL AND",
    to: "AND",
    caughtBy: `${QUEUE}/ordinary.test.ts`,
  },
  {
    name: "one permit too many is granted, the long way",
    file: `${QUEUE}/permits.ts`,
    from: "WHEN place > free THEN 'no_permit'\n                 WHEN place_kept > free THEN 'early'",
    to: "WHEN place > free + 1 THEN 'no_permit'\n                 WHEN place_kept > free + 1 THEN 'early'",
    caughtBy: `${QUEUE}/permits.test.ts`,
  },
  {
    name: "the short way takes no notice of a hold",
    file: `${QUEUE}/permits.ts`,
    from: "CASE WHEN NOT f.held AND now() -",
    to: "CASE WHEN now() -",
    caughtBy: `${QUEUE}/ordinary.test.ts`,
  },
  {
    name: "the short way gives away what is kept for a class that was called",
    file: `${QUEUE}/permits.ts`,
    from: ">= ALL (f.called_at)",
    to: "IS NOT NULL",
    caughtBy: `${QUEUE}/ordinary.test.ts`,
  },
  {
    name: "a settlement is not compared with the run that was claimed, the long way",
    file: `${QUEUE}/settle.ts`,
    from: "FROM found WHERE owed_run_id = run_id AND node_id IS NOT NULL",
    to: "FROM found WHERE owed_run_id IS NOT NULL",
    caughtBy: `${QUEUE}/settle.test.ts`,
  },
  {
    name: "a settlement is not compared with the run that was claimed, the short way",
    file: `${QUEUE}/settle-ordinary.ts`,
    from: "coalesce(o.run_id = i.run_id AND o.node_id IS NOT NULL, false)",
    to: "coalesce(o.run_id IS NOT NULL, false)",
    caughtBy: `${QUEUE}/settle.test.ts`,
  },
  {
    name: "the short way settles although somebody waits for the permit",
    file: `${QUEUE}/settle-ordinary.ts`,
    from: "CASE WHEN f.waiting = 0 AND f.subscriptions = 0 THEN",
    to: "CASE WHEN f.subscriptions = 0 THEN",
    caughtBy: `${QUEUE}/ordinary.test.ts`,
  },
  {
    name: "a settlement of a delivery is not compared with the attempt that was claimed",
    file: `${QUEUE}/delivery-settle.ts`,
    from: "SELECT * FROM found WHERE open_attempt_id = attempt_id AND node_id IS NOT NULL",
    to: "SELECT * FROM found WHERE node_id IS NOT NULL",
    caughtBy: `${QUEUE}/delivery-settle.test.ts`,
  },
  {
    name: "the end of a job is not told to its endpoints",
    file: `${QUEUE}/settle.ts`,
    from: "AND NOT canceled`, END)",
    to: "AND false`, END)",
    caughtBy: `${QUEUE}/events.test.ts`,
  },
  {
    name: "a run is counted in the month that the statement began in",
    file: `${QUEUE}/month.ts`,
    from: "month = greatest(f.month, clock.month)`;",
    to: "month = clock.month`;",
    caughtBy: `${QUEUE}/month.test.ts`,
  },
  {
    name: "a sweep looks back too little",
    file: `${QUEUE}/sweep.ts`,
    from: "export const SWEEP_LAG_MS = STATEMENT_TIMEOUT_MS + 1_000;",
    to: "export const SWEEP_LAG_MS = 0;",
    caughtBy: `${QUEUE}/sweep.test.ts`,
  },
  {
    name: "what a sweep finds is not kept",
    file: "services/worker/shard/shard.ts",
    from: "for (const row of rows) if (this.keep(row, now, true)) newsCount++;",
    to: "",
    caughtBy: "services/worker/shard/shard.test.ts",
  },
  {
    name: "a lost shard goes on sending",
    file: "services/worker/shard/shard.ts",
    from: "for (const lane of this.lanes.values()) lane.cancelTimers();",
    to: "",
    caughtBy: "services/worker/shard-host.test.ts",
  },
  {
    name: "attempts of nodes that live are rescued",
    file: "shared/store/cell/nodes.ts",
    from: "AND (coalesce(n.dead, true) OR o.started_at < $1::timestamptz)\n ORDER BY o.started_at",
    to: "ORDER BY o.started_at",
    caughtBy: "shared/store/cell/membership.test.ts",
  },
  {
    name: "a cancel takes a job away whose attempt is on the wire",
    file: "shared/store/resources/jobs-by-hand.ts",
    from: "WHERE $9 <> 'sent' AND o.project_no = $1",
    to: "WHERE o.project_no = $1",
    caughtBy: "shared/store/resources/jobs.test.ts",
  },
  {
    name: "a retry by hand is made although its key is taken",
    file: "shared/store/resources/jobs-by-hand.ts",
    from: "CASE WHEN outcome = 'retried' AND $9 IS NOT NULL AND NOT EXISTS (SELECT FROM key) THEN 'key_taken'",
    to: "CASE WHEN false THEN 'key_taken'",
    caughtBy: "shared/store/resources/idempotency.test.ts",
  },
  {
    name: "requests that are lent to a gateway are not counted",
    file: "shared/store/resources/request-rate.ts",
    from: "SET accepted = g.standing + g.taken + g.lent, loans",
    to: "SET accepted = g.standing + g.taken, loans",
    caughtBy: "shared/store/resources/request-rate.test.ts",
  },
  {
    name: "the wait before a retry goes beyond its cap",
    file: "shared/domain/backoff.ts",
    from: "return Math.min(policy.capSeconds, policy.baseSeconds",
    to: "return Math.max(policy.capSeconds, policy.baseSeconds",
    caughtBy: "shared/domain/backoff.test.ts",
  },
  {
    name: "a signature tells a wrong time",
    file: "services/delivery/sign.ts",
    from: "Math.floor(sentAt / 1_000)",
    to: "Math.floor(sentAt / 1_001)",
    caughtBy: "services/delivery/sign.test.ts",
  },
  {
    name: "private addresses are dialled",
    file: "shared/domain/target.ts",
    from: 'parsed.range() === "unicast" && parsed.match(GLOBAL_UNICAST)',
    to: "true",
    caughtBy: "shared/domain/target.test.ts",
  },
  {
    name: "a node claims what it has on the wire",
    file: "services/delivery/claim-and-send.ts",
    from: "if (inFlightNow !== undefined) {",
    to: "if (false) {",
    caughtBy: "services/delivery/claim-and-send.test.ts",
  },
  {
    name: "a claim of unknown outcome is given up",
    file: "services/delivery/retry-until-answered.ts",
    from: "if (!(error instanceof StoreUnavailable)) throw error;",
    to: "throw error;",
    caughtBy: "services/delivery/claim-and-send.test.ts",
  },
];
