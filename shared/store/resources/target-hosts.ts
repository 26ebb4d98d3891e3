import {
  HOST_CAUSES,
  HOST_STATES,
  HOSTS_PARKED_BY_HAND_MAX,
  type HostStanding,
  type HostState,
} from "../../domain/host-state.ts";
import { idToUuid } from "../../domain/ids.ts";
import type { OwedAttempt, Placed } from "../../domain/owed.ts";
import type { ProjectNo, Scope } from "../../domain/scope.ts";
import { environmentCode, HOSTS_WATCHED } from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { HOST_CODES, hostEvent, shardOfLanes } from "../queue/host-gates.ts";
import { tellOf } from "../queue/owed-deliveries.ts";
import { auditFrom, type KeyCause } from "./audit.ts";
import { type KeyToTake, keepAnswer } from "./idempotency.ts";
import { lockProject } from "./lock-project.ts";

/**
 * Target hosts as clients see and change them. The statements of queue/host-gates.ts decide what happens to attempts there.
 * Delivery nodes empty gate_calls (queue/host-calls.ts) and call the attempts that a change lets start, within a second.
 */

const { DOWN, OPENING, BREAKER, HAND } = HOST_CODES;
const COLUMNS = `h.host, h.state, h.by, ${epochMs("h.since")} AS since,
       (h.parked + CASE WHEN h.probe IS NOT NULL AND h.next_probe_at > now() THEN 1 ELSE 0 END)::float8 AS parked, ${epochMs("h.next_probe_at")} AS next_probe_at`;

/** A page of an environment's hosts that are not well, in ascending order of bytes; null for `state` means both. */
export async function listTargetHosts(
  db: Database,
  { projectNo, environment }: Scope,
  { after, limit, state }: { after: string | null; limit: number; state: HostState | null },
): Promise<HostStanding[]> {
  const states = (state === null ? HOST_STATES : [state]).map((one) => HOST_STATES.indexOf(one));
  const values = [projectNo, environmentCode(environment), after ?? "", limit, column(states)];
  return (await db.run<Row>("list_target_hosts", LIST, values)).map(readHost);
}

const LIST = `
SELECT ${COLUMNS}
  FROM unnest($5::smallint[]) AS s (state)
 CROSS JOIN LATERAL (
       SELECT * FROM target_hosts t
        WHERE t.project_no = $1 AND t.environment = $2 AND t.state = s.state AND t.state IS NOT NULL AND t.host > $3
        ORDER BY t.host LIMIT $4) h
 ORDER BY h.host LIMIT $4`;

type Key = (KeyToTake & { answerOf(host: HostStanding): Buffer }) | null;

/**
 * Parks the due attempts of a host until a client opens it. A host that is parked by hand already stays as it is. Endpoints are
 * told by deliveries in the home region, where the project has `shard`; sweeps find these.
 */
export async function parkHost(
  db: Database,
  scope: Scope,
  host: string,
  cause: KeyCause,
  key: Key,
  shard: number,
): Promise<{ kind: "parked"; row: HostStanding } | { kind: "too_many" } | { kind: "key_taken" }> {
  // This statement commits itself, since claims wait for the row that it locks. If no host is parked after all, the watch only
  // makes the project's attempts go a longer way.
  await watchHosts(db, scope.projectNo);
  const [row] = await db.transact(async (tx) => {
    // Under the project's lock the count is exact.
    await lockProject(tx, scope.projectNo);
    return change(tx, "park_host", PARK, scope, host, cause, shard);
  });
  if (row === undefined) return { kind: "too_many" };
  return (await isKept(db, scope, key, row)) ? { kind: "parked", row } : { kind: "key_taken" };
}

/**
 * Opens a host, with the ramp. A host that is opening stays as it is, and a well one is answered as just opened. `shard` is as
 * for parkHost.
 */
export async function openHost(
  db: Database,
  scope: Scope,
  host: string,
  cause: KeyCause,
  key: Key,
  shard: number,
): Promise<{ row: HostStanding; owed: Placed<OwedAttempt>[] } | "key_taken"> {
  const [row] = await change(db, "open_host", OPEN, scope, host, cause, shard);
  if (row === undefined) throw new Error("a host that was opened did not come back");
  return (await isKept(db, scope, key, row)) ? { row, owed: [] } : "key_taken";
}

/** The answer is kept after the change is committed, because the change may be made twice without harm. */
const isKept = async (db: Database, scope: Scope, key: Key, row: HostStanding): Promise<boolean> =>
  key === null || keepAnswer(db, scope, key, key.answerOf(row));

async function change(
  db: Pick<Database, "run">,
  name: string,
  text: string,
  { projectNo, environment }: Scope,
  host: string,
  { requestId, keyNo }: KeyCause,
  shard: number,
): Promise<HostStanding[]> {
  const values = [projectNo, environmentCode(environment), host, idToUuid(requestId), keyNo, host, shard];
  return (await db.run<Row>(name, text, values)).map(readHost);
}

const OLD = `old AS MATERIALIZED (
  SELECT h.* FROM target_hosts h WHERE h.project_no = $1 AND h.environment = $2 AND h.host = $3::text FOR NO KEY UPDATE
)`;
/** Tells endpoints of the changes of state in `changed`. */
const told = (type: "host.down" | "host.up") => `told AS MATERIALIZED (
  SELECT ${hostEvent(type, "c", "$7::smallint")} FROM (SELECT *, since AS new_since FROM changed) c WHERE NOT EXISTS (SELECT FROM old WHERE old.state = ${type === "host.down" ? DOWN : OPENING})
), ${tellOf("told")}`;

const PARK = `
WITH ${OLD}, changed AS (
  INSERT INTO target_hosts AS h (project_no, environment, host, state, by, since)
  SELECT $1::int, $2::smallint, $3, ${DOWN}, ${HAND}, now()
   WHERE NOT EXISTS (SELECT FROM old WHERE old.state = ${DOWN} AND old.by = ${HAND})
     AND (SELECT count(*) FROM (SELECT FROM target_hosts t WHERE t.project_no = $1 AND t.environment = $2 AND t.state = ${DOWN} AND t.by = ${HAND}
                                 LIMIT ${HOSTS_PARKED_BY_HAND_MAX}) parked) < ${HOSTS_PARKED_BY_HAND_MAX}
      ON CONFLICT (project_no, environment, host) DO UPDATE
     SET state = excluded.state, by = excluded.by, since = CASE WHEN h.state = ${DOWN} THEN h.since ELSE excluded.since END,
         next_probe_at = NULL, probe = NULL, failures = 0, failing_since = NULL
  RETURNING *
), ${told("host.down")}, ${auditFrom("host.park", "changed")}
SELECT ${COLUMNS} FROM (SELECT * FROM changed UNION ALL SELECT * FROM old WHERE old.state = ${DOWN} AND old.by = ${HAND}) h`;

const OPENED = `state = ${OPENING}, since = now(), next_probe_at = NULL, probe = NULL, second = 0, started = 0, failures = 0, failing_since = NULL`;
const CALLED = `called AS (
  INSERT INTO gate_calls (project_no, environment, gate) SELECT project_no, environment, 'h' || host FROM changed
)`;

const OPEN = `
WITH ${OLD}, changed AS (
  UPDATE target_hosts h SET ${OPENED}, by = ${HAND}
    FROM old WHERE old.state = ${DOWN} AND h.project_no = $1 AND h.environment = $2 AND h.host = $3
  RETURNING h.*
), ${CALLED}, ${told("host.up")}, ${auditFrom("host.open", "changed")}
SELECT ${COLUMNS} FROM (SELECT * FROM changed UNION ALL SELECT * FROM old WHERE old.state = ${OPENING}) h
UNION ALL
SELECT $3, ${OPENING}::smallint, ${HAND}::smallint, ${epochMs("now()")}, 0, NULL WHERE NOT EXISTS (SELECT FROM old WHERE old.state IS NOT NULL)`;

/** Makes attempts of the project go the way on which hosts are watched, from now on. */
export async function watchHosts(db: Database, projectNo: ProjectNo): Promise<void> {
  await db.run(
    "watch_hosts",
    `UPDATE flows SET subscriptions = subscriptions | ${HOSTS_WATCHED} WHERE project_no = $1 AND subscriptions & ${HOSTS_WATCHED} = 0`,
    [projectNo],
  );
}

/** How many hosts one statement opens. */
const OPENED_MAX = 100;

/**
 * Opens hosts that the breaker took down, once a project does not park failing hosts. If they are many, or if this is cut off,
 * openLeftHosts opens the others.
 */
export async function openFailingHosts(db: Database, projectNo: ProjectNo): Promise<void> {
  await db.run("open_failing_hosts", OPEN_FAILING, [projectNo]);
}

/**
 * The same for all projects: a settlement that began before a project ceased to park failing hosts may take one down afterwards.
 * Leaves hosts that others have locked.
 */
export async function openLeftHosts(db: Database): Promise<void> {
  for (let opened = OPENED_MAX; opened === OPENED_MAX; )
    opened = (await db.run("open_left_hosts", OPEN_LEFT, [])).length;
}

const openingOf = (hosts: string) => `
WITH old AS MATERIALIZED (
  SELECT h.* FROM target_hosts h WHERE h.state = ${DOWN} AND h.by = ${BREAKER} AND ${hosts}
), changed AS (
  UPDATE target_hosts h SET ${OPENED}
    FROM old WHERE h.project_no = old.project_no AND h.environment = old.environment AND h.host = old.host
  RETURNING h.*
), ${CALLED}, told AS MATERIALIZED (
  SELECT ${hostEvent("host.up", "c", shardOfLanes("c"))} FROM (SELECT *, since AS new_since FROM changed) c
), ${tellOf("told")}
SELECT FROM changed`;
const inOrder = `ORDER BY h.project_no, h.environment, h.host LIMIT ${OPENED_MAX} FOR NO KEY UPDATE`;
const OPEN_FAILING = openingOf(`h.project_no = $1 ${inOrder}`);
const OPEN_LEFT = openingOf(
  `(SELECT park_failing_hosts FROM projects p WHERE p.no = h.project_no) IS NOT TRUE ${inOrder} SKIP LOCKED`,
);

interface Row {
  host: string;
  state: number;
  by: number;
  since: number;
  parked: number;
  next_probe_at: number | null;
}

function readHost(row: Row): HostStanding {
  const [state, by] = [HOST_STATES[row.state], HOST_CAUSES[row.by]];
  if (state === undefined || by === undefined) throw new Error(`unknown code in the row of ${row.host}`);
  return { host: row.host, state, by, since: row.since, parked: row.parked, nextProbeAt: row.next_probe_at };
}
