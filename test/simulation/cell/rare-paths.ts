/** Paths that some hundred seeds must meet, by the beginnings of their names. A path never met is not tested. */
const RARE_PATHS: readonly string[] = [
  ...[
    ...[
      "clock leap",
      "crash",
      "cut",
      "freeze",
      "host away",
      "late timers",
      "outage",
      "restart",
      "slow down",
      "statements",
    ],
    ...["storm", "swizzle"],
  ].map((kind) => `fault: ${kind}`),
  ...[
    "cancel",
    "change flow",
    "disable endpoint",
    "hold project",
    "hold region",
    "limit host",
    "park host",
    "pause schedule",
    "retry",
  ].map((kind) => `operation: ${kind}`),
  ...["granted", "early", "no_permit", "blocked"].flatMap((answer) => [
    `claim: ${answer}`,
    `claim_deliveries: ${answer}`,
  ]),
  ...["answer lost", "done later", "not done", "slow"].flatMap((fate) =>
    ["claim", "settle"].map((name) => `${fate}: ${name}`),
  ),
  ...[
    "message dropped",
    "message doubled",
    "message lost on a cut link in",
    "message lost on a cut link out",
  ],
  ...["command waited for a cut link", "cancel", "retry by hand", "permits called", "silent bus"],
  ...[
    "shard taken over",
    "lease lost",
    "firing gone",
    "fire_schedules: skipped",
    "fire_bound_schedules: fired",
    "settle: settled before",
    "settle_deliveries: settled before",
  ],
  ...["lost with its node", "lost past its deadline", "log: attempt.rescued", "log: delivery.rescued"],
  ...[
    "operation: bulk",
    "bulk aborted",
    "bulk waited for its pace",
    "log: bulk.done",
    "log: bulk.not_carried_out",
  ],
  ...["cancel", "retry", "backfill"].map((action) => `${action}_bulk_members: done`),
  "cancel_bulk_members: skipped",
  ...["park_jobs", "park_webhooks", "release_jobs", "release_webhooks"],
  ...["create_jobs_flowing", "fire_bound_schedules"].map((name) => `${name}: parked`),
  ...[
    "parked by a key",
    "parked by a rate",
    "parked by a pause",
    "put off by a key",
    "put off by a rate",
  ].map((refused) => `claim_whole: ${refused}`),
  ...["claim_whole", "settle_whole", "settle_keyed", "empty_gate_calls"].map((name) => `${name}: called`),
  ...["host down", "host up", "empty_host_calls: called"],
  ...["parked by a host", "put off by a host"].map((refused) => `claim_whole: ${refused}`),
  ...["claim_keyed: done", "settle_keyed: done", "rescued from a flow key"],
  ...[
    "log: node.dead",
    "log: clock.leapt",
    "log: the database's clock went back",
    "log: schedules.not_fired",
  ],
];

export const findUnmet = (counts: ReadonlyMap<string, number>): string[] =>
  RARE_PATHS.filter((path) => ![...counts.keys()].some((name) => name.startsWith(path)));
