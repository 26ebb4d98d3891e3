import { BULK_PREFIX, JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import { LOST_ERROR } from "../../../shared/domain/run.ts";
import { environmentOf } from "../../../shared/store/database/codes.ts";
import type { JudgedMember } from "../../support/history/history.ts";
import type { Recording } from "./recording.ts";
import type { Watch } from "./server.ts";
import type { HostChange } from "./store/host-gates.ts";
import type { Refused } from "./store/keyed-claims.ts";
import { numbers, texts, textsOrNull } from "./store/parameters.ts";
import type { Timeline } from "./timeline.ts";

/** A member as the model of the statement tells it (store/bulks.ts). */
interface JudgedRow extends Pick<JudgedMember, "outcome"> {
  position: number;
  job_id: string | null;
  attempts?: number;
  run?: string;
  attempt?: number;
}

/** The first row that the model of claim_whole answers (store/keyed-claims.ts). */
interface ClaimedWhole {
  called: readonly unknown[] | null;
  refused: readonly Refused[];
}

const readJudged = ({ position, job_id, outcome }: JudgedRow): JudgedMember => ({
  member: job_id === null ? String(position) : uuidToId(JOB_PREFIX, job_id),
  outcome,
});

/** Notes statements for the history and for the counts of rare paths. */
export function watchStatements(timeline: Timeline, recording: Recording): Watch {
  const noteEpoch = (values: readonly unknown[]) =>
    recording.note({
      ...{ kind: "epoch used", at: timeline.now },
      ...{ shard: `0/${values[3]}`, epoch: Number(values[4]) },
    });
  const meetParked = (name: string, rows: readonly object[]) => {
    for (const { is_parked } of rows as { is_parked?: boolean }[])
      if (is_parked) recording.meet(`${name}: parked`);
  };
  const meetCalled = (name: string, called: readonly unknown[] | null) => {
    if (called !== null) recording.meet(`${name}: called`, called.length);
  };
  const noteHost = ({ project_no, environment, host, isDown, at }: HostChange) =>
    recording.noteHost({
      ...{ project: project_no, environment: environmentOf(environment), gate: host, isDown, at },
    });
  return (name, values, rows) => {
    switch (name) {
      case "acquire_shards":
        for (const row of rows as { region: number; shard: number; epoch: string }[]) {
          const epoch = Number(row.epoch);
          const shard = `${row.region}/${row.shard}`;
          if (epoch > 1) recording.meet("shard taken over");
          recording.note({ kind: "epoch granted", at: timeline.now, shard, epoch, node: Number(values[2]) });
        }
        return;
      case "fire_schedules":
      case "fire_bound_schedules": {
        const [shards, epochs] = [numbers(values[3]), numbers(values[4])];
        for (const { n, region } of rows as { n: number; region: number | null }[]) {
          recording.meet(`${name}: ${region === null ? "skipped" : "fired"}`);
          const epoch = epochs[n - 1] as number;
          recording.note({ kind: "epoch used", at: timeline.now, shard: `0/${shards[n - 1]}`, epoch });
        }
        meetParked(name, rows);
        if (rows.length < shards.length) recording.meet("firing gone");
        return;
      }
      case "count_bulk_members":
      case "start_bulk":
        if (rows.length > 0) noteEpoch(values);
        return;
      case "cancel_bulk_members":
      case "retry_bulk_members":
      case "backfill_bulk_members": {
        const [first] = rows as { due_at: number; judged_at: number; members: JudgedRow[] }[];
        if (first === undefined) return;
        noteEpoch(values);
        const bulk = uuidToId(BULK_PREFIX, String(values[2]));
        const { judged_at: judgedAt, members } = first;
        if (members.length === 0) return recording.meet("bulk waited for its pace");
        const at = timeline.now;
        recording.note({ kind: "bulk judged", at, judgedAt, bulk, members: members.map(readJudged) });
        for (const { job_id, outcome, attempts, run, attempt } of members) {
          recording.meet(`${name}: ${outcome}`);
          const job = job_id === null ? "" : uuidToId(JOB_PREFIX, job_id);
          if (attempts !== undefined) recording.note({ kind: "job canceled", at, job, attempts });
          if (run === undefined || attempt === undefined) continue;
          const retried = { at, job, run: uuidToId(RUN_PREFIX, run) };
          recording.note({ kind: "retry asked", ...retried });
          recording.note({ kind: "retry accepted", ...retried, attempt });
        }
        return;
      }
      case "create_jobs_flowing":
        meetParked(name, rows);
        return;
      case "claim_keyed":
        for (const { n, is_granted } of rows as { n: number; is_granted: boolean }[])
          recording.meet(`${name}: ${n === 0 ? "called" : is_granted ? "granted" : "gone"}`);
        return;
      case "settle_keyed":
        for (const { kind } of rows as { kind: string }[]) recording.meet(`${name}: ${kind}`);
        return;
      case "find_started":
        if (rows.length > 0) recording.meet(name);
        return;
      case "claim_whole": {
        const [{ called, refused } = { called: null, refused: [] }] = rows as ClaimedWhole[];
        meetCalled(name, called);
        for (const { id, by, isParked } of refused) {
          recording.meet(`${name}: ${isParked ? "parked" : "put off"} by a ${by}`);
          if (by === "host") recording.keptByHost.add(uuidToId(JOB_PREFIX, id));
        }
        return;
      }
      case "park_host":
      case "open_host": {
        const [project_no, environment, host] = values as [number, number, string];
        for (const { since } of rows as { since: number }[])
          noteHost({ project_no, environment, host, isDown: name === "park_host", at: since });
        return;
      }
      case "empty_host_calls":
      case "empty_gate_calls":
        for (const { called } of rows as ClaimedWhole[]) meetCalled(name, called);
        return;
      case "claim":
      case "claim_deliveries":
        for (const { kind } of rows as { kind?: string }[])
          if (kind !== undefined) recording.meet(`${name}: ${kind}`);
        return;
      case "settle":
      case "settle_whole":
      case "settle_deliveries":
      case "settle_failed_deliveries": {
        const attempts = (rows as { kind: string }[]).filter(({ kind }) => kind === "attempt").length;
        if (attempts < numbers(values[0]).length)
          recording.meet(`${name.replace(/_whole|_failed/, "")}: settled before`);
        const errors = textsOrNull(values[7]);
        for (const row of rows as ({ kind: string } & HostChange)[]) if (row.kind === "host") noteHost(row);
        for (const { kind, n, is_keyed } of rows as { kind: string; n: number; is_keyed?: boolean }[])
          if (is_keyed && errors[n - 1] === LOST_ERROR) recording.meet("rescued from a flow key");
          else if (kind === "freed") recording.meet("permits called");
          else if (kind === "called") recording.meet(`${name}: called`);
        return;
      }
      case "list_lost":
        for (const { node_dead } of rows as { node_dead: boolean }[])
          recording.meet(node_dead ? "lost with its node" : "lost past its deadline");
        return;
      case "list_shards_in_use":
        recording.meet("silent bus");
        return;
      case "park_jobs":
        for (const { n } of rows as { n: number }[]) {
          const job = uuidToId(JOB_PREFIX, texts(values[3])[n - 1] ?? "");
          recording.note({ kind: "attempt parked at full host", at: timeline.now, job });
        }
        if (rows.length > 0) recording.meet(name);
        return;
      case "park_webhooks":
      case "release_jobs":
      case "release_webhooks":
        if (rows.length > 0) recording.meet(name);
        return;
      case "renew_shards":
        if (rows.length > 0) recording.meet("lease lost");
        return;
    }
  };
}
