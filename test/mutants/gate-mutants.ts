import type { Mutant } from "./mutants.ts";

const QUEUE = "shared/store/queue";
const FLOW_TESTS = `${QUEUE}/flow-gates.test.ts`;
const HOST_TESTS = `${QUEUE}/host-gates.test.ts`;
const HOST_EVENT_TESTS = `${QUEUE}/host-events.test.ts`;
const KEYS_IN_A_CELL = "test/flow/flow-keys.test.ts";

/** Faults of flow keys and of hosts that are down. */
export const GATE_MUTANTS: readonly Mutant[] = [
  {
    name: "a retry by hand of a probe's job is sent to a host that is down before the probe's time",
    file: `${QUEUE}/host-gates.ts`,
    from: " AND p.next_probes[x.at] <= now()",
    to: "",
    caughtBy: HOST_TESTS,
  },
  {
    name: "an attempt that finds an earlier one in its key's queue does not let that one start",
    file: `${QUEUE}/flow-gates.ts`,
    from: "WHERE p.parks OR ",
    to: "WHERE ",
    caughtBy: FLOW_TESTS,
  },
  {
    name: "a gate has a place back between two attempts of a job that holds it",
    file: `${QUEUE}/settle.ts`,
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    from: "has_place AND (next <> ${QUEUED} OR canceled OR NOT keeps_place) AS frees",
    to: "has_place AS frees",
    caughtBy: FLOW_TESTS,
  },
  {
    name: "a gate does not count the starts of its rate",
    file: `${QUEUE}/flow-gates.ts`,
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    from: '${startsWith("clock.at", "p.starts", "at")} AS started_at, ${startsWith("clock.at", "p.starts", "n")} AS started',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    to: '${startsWith("clock.at", "0", "at")} AS started_at, ${startsWith("clock.at", "0", "n")} AS started',
    caughtBy: FLOW_TESTS,
  },
  {
    name: "who leaves a gate does not call the next, the long way",
    file: `${QUEUE}/flow-gates.ts`,
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    from: "   WHERE ${anyWaits}\n",
    to: "   WHERE false\n",
    caughtBy: FLOW_TESTS,
  },
  {
    name: "who leaves a gate does not call the next, the short way",
    file: `${QUEUE}/settle-keyed.ts`,
    from: "   WHERE k.room > 0\n",
    to: "   WHERE false\n",
    caughtBy: `${QUEUE}/keyed.test.ts`,
  },
  {
    name: "a place is handed on past an attempt that may not start",
    file: "shared/store/database/migrations/0034_gates_by_lanes.sql",
    from: "WHERE head.is_next ORDER",
    to: "ORDER",
    caughtBy: `${QUEUE}/keyed.model.test.ts`,
  },
  {
    name: "an attempt that is started in a place handed on goes on waiting",
    file: `${QUEUE}/settle-keyed.ts`,
    from: "CASE WHEN was_parked THEN region END",
    to: "NULL::smallint",
    caughtBy: `${QUEUE}/keyed.model.test.ts`,
  },
  {
    name: "an attempt that is started in a place handed on is sent though a claim has got it",
    file: "services/delivery/claim-and-send.ts",
    from: "if (!isLeft()) {",
    to: "if (false) {",
    caughtBy: "services/delivery/claim-and-send.test.ts",
  },
  {
    name: "a settlement takes the last place of a host",
    file: "services/delivery/claim-and-send.ts",
    from: "hosts.mayTakeBlindly()",
    to: "true",
    caughtBy: "services/delivery/claim-and-send.test.ts",
  },
  {
    name: "an attempt is queued though its key has a free place",
    file: "services/delivery/key-queues.ts",
    from: "key.inFlight < key.places || ",
    to: "",
    caughtBy: "services/delivery/key-queues.test.ts",
  },
  {
    name: "an attempt that is queued is not claimed when a place comes free",
    file: "services/delivery/claim-and-send.ts",
    from: "if (key !== null) await claimKeptBack(kind, key);",
    to: "if (key !== null) keys.ends(key);",
    caughtBy: "services/delivery/claim-and-send.test.ts",
  },
  {
    name: "a worker forgets an attempt whose earlier one has begun",
    file: "services/worker/shard/shard.ts",
    from: "if (lane === undefined || entry?.attempt !== attempt) return;",
    to: "if (lane === undefined || entry === undefined) return;",
    caughtBy: "services/worker/shard/shard.test.ts",
  },
  {
    name: "a batcher that always has items for a lock keeps it from others",
    file: "shared/store/database/turns.ts",
    from: "wait.keptUntil = now + KEPT_MS;",
    to: "",
    caughtBy: "shared/store/database/batch.test.ts",
  },
  {
    name: "the mark of a key's queue does not move back",
    file: `${QUEUE}/settle-keyed.ts`,
    from: "s.since < k.queue_since OR ",
    to: "",
    caughtBy: `${QUEUE}/queue-since.test.ts`,
  },
  {
    name: "a claim does not say that it has got an attempt that was started in a place handed on",
    file: "services/delivery/job-attempts.ts",
    from: 'if (claimed.kind === "granted") askedFor.delete(claimed.attempt.runId);',
    to: "",
    caughtBy: "services/delivery/next-attempts.test.ts",
  },
  {
    name: "after a lost answer nobody looks for the attempt that was started",
    file: "services/delivery/job-attempts.ts",
    from: "const started = nextRunId && (await",
    to: "const started = false && (await",
    caughtBy: "services/delivery/next-attempts.test.ts",
  },
  {
    name: "who passes a gate takes no place, the short way",
    file: `${QUEUE}/claim-keyed.ts`,
    from: "in_use = k.in_use + s.places",
    to: "in_use = k.in_use",
    caughtBy: FLOW_TESTS,
  },
  {
    name: "a cancel between attempts leaves its place at the gate taken",
    file: `${QUEUE}/gate-calls.ts`,
    from: "CASE WHEN has_place THEN -1 ELSE 0 END",
    to: "0",
    caughtBy: FLOW_TESTS,
  },
  {
    name: "limits that a job gives do not call what the rate before has put off",
    file: `${QUEUE}/given-flows.ts`,
    from: "FROM given WHERE is_changed",
    to: "FROM given WHERE false",
    caughtBy: `${QUEUE}/given-flows.test.ts`,
  },
  {
    name: "an attempt that a rate has put off beyond the limits of now stays put off",
    file: `${QUEUE}/gate-calls.ts`,
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    from: "'k' || k.flow_key, ${HEADS}) h) h",
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    to: "'k' || k.flow_key, ${roomOf(\"k.used\")}) h) h",
    caughtBy: `${QUEUE}/given-flows.test.ts`,
  },
  {
    name: "a job that is reopened leaves its key forgotten",
    file: `${QUEUE}/retried-jobs.ts`,
    from: "FROM owed WHERE flow_key IS NOT NULL",
    to: "FROM owed WHERE false",
    caughtBy: `${QUEUE}/retried-jobs.test.ts`,
  },
  {
    name: "a key that only a schedule names is forgotten",
    file: `${QUEUE}/flow-key-purge.ts`,
    from: "AND s.flow ->> 'key' = k.flow_key AND s.flow IS NOT NULL LIMIT 1",
    to: "AND false LIMIT 1",
    caughtBy: FLOW_TESTS,
  },
  {
    name: "a gate opens its host although the probe found nobody",
    file: `${QUEUE}/host-gates.ts`,
    from: "probe_ended AND probe_met, false) AS goes_up",
    to: "probe_ended, false) AS goes_up",
    caughtBy: HOST_TESTS,
  },
  {
    name: "a gate of a host that is down lets others than the probe pass",
    file: `${QUEUE}/host-gates.ts`,
    from: "THEN o.job_id = p.probes[x.at]",
    to: "THEN true",
    caughtBy: HOST_TESTS,
  },
  {
    name: "a rescue does not give the place at a gate back",
    file: "services/worker/duties/rescue.ts",
    from: "    durationMs: attempt.elapsedMs,\n",
    to: "    durationMs: attempt.elapsedMs,\n    isPlain: true,\n",
    caughtBy: KEYS_IN_A_CELL,
  },
  {
    name: "a gate lets one start more than its rate",
    file: `${QUEUE}/flow-gates.ts`,
    from: "ELSE k.rate_count - (SELECT coalesce(sum(n), 0)",
    to: "ELSE k.rate_count + 1 - (SELECT coalesce(sum(n), 0)",
    caughtBy: KEYS_IN_A_CELL,
  },
  {
    name: "a gate lets attempts start by a clock that was read before its lock was there",
    file: `${QUEUE}/flow-gates.ts`,
    from: "           WHERE (SELECT count(*) FROM (SELECT FROM flow UNION ALL SELECT FROM gate UNION ALL SELECT FROM host) all_locked) >= 0) read",
    to: "           ) read",
    caughtBy: FLOW_TESTS,
  },
  {
    name: "a gate judges a probe without its place in its key's queue",
    file: `${QUEUE}/flow-gates.ts`,
    from: "a.gate LIKE 'h%' AND a.has_place IS NULL AND a.host_passes",
    to: "false AND a.host_passes",
    caughtBy: HOST_TESTS,
  },
  {
    name: "a gate of a host that is down waits for another probe's time after a probe that was not sent",
    file: `${QUEUE}/host-gates.ts`,
    from: "t.next_probe_at + 0 * d.count",
    to: "now() + t.probe_seconds * interval '1 s' + 0 * d.count",
    caughtBy: HOST_TESTS,
  },
  {
    name: "a gate of a host that opens sends what comes from a flow key to the end",
    file: `${QUEUE}/host-gates.ts`,
    from: "a.may_start AND a.gate IS DISTINCT FROM",
    to: "false AND a.gate IS DISTINCT FROM",
    caughtBy: HOST_TESTS,
  },
  {
    name: "a gate of a host is down for all regions while that of its probe is held",
    file: `${QUEUE}/host-calls.ts`,
    from: "o.due_at IS NOT NULL AND o.region <> ALL (",
    to: "o.due_at IS NOT NULL AND o.region + 9 <> ALL (",
    caughtBy: HOST_TESTS,
  },
  {
    name: "one host's events of all projects and environments are one event",
    file: `${QUEUE}/host-gates.ts`,
    from: `'\${type}', \${host}.project_no, \${host}.environment, \${host}.host`,
    to: `'\${type}', \${host}.host`,
    caughtBy: HOST_EVENT_TESTS,
  },
  {
    name: "a host that is parked in a project without a lane is told of by no shard",
    file: "shared/store/resources/target-hosts.ts",
    from: '"$7::smallint"',
    to: 'shardOfLanes("c")',
    caughtBy: HOST_EVENT_TESTS,
  },
  {
    name: "a delivery whose event has no row fails all claims of its statement",
    file: `${QUEUE}/delivery-claim.ts`,
    from: "AND EXISTS (\n           SELECT FROM events v WHERE",
    to: "OR EXISTS (\n           SELECT FROM events v WHERE false AND",
    caughtBy: `${QUEUE}/delivery-claim.test.ts`,
  },
  {
    name: "an answer of 503 says that somebody is there",
    file: "shared/domain/host-state.ts",
    from: "[502, 503, 504]",
    to: "[502, 504]",
    caughtBy: "shared/domain/host-state.test.ts",
  },
];
