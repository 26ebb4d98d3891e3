import * as bulks from "./bulks.ts";
import * as byHand from "./by-hand.ts";
import { claim, claimOrdinary, claimOrdinaryOne } from "./claims.ts";
import { createJobs, createOrdinaryJob, createOrdinaryJobs, createUniformJobs } from "./creations.ts";
import { changeWebhook, claimDeliveries, settleDeliveries } from "./deliveries.ts";
import * as firings from "./firings.ts";
import { changeFlowKey, emptyGateCalls } from "./flow-keys.ts";
import * as hosts from "./host-gates.ts";
import { claimKeyed, claimWhole } from "./keyed-claims.ts";
import { findStarted, settleKeyed } from "./keyed-settlements.ts";
import * as members from "./members.ts";
import { toMs } from "./parameters.ts";
import { listParked, park, release } from "./parking.ts";
import { listLost, listLostDeliveries } from "./rescues.ts";
import { settle, settleOrdinary, settleWhole } from "./settlements.ts";
import * as sweeps from "./sweeps.ts";
import type { Statement, Tables } from "./tables.ts";

const askTime: Statement = (_tables, { clock }) => [{ now: toMs(clock) }];

const listSigningSecrets: Statement = ({ signing_secret }, _time, values) =>
  String(values[0])
    .split(",")
    .map((_, index) => ({ n: index + 1, sealed: signing_secret }));

/** No endpoint of a simulation changes its URL, so none leaves a host. */
const nothing: Statement = () => [];

/** The figures of the cell that a worker shows operators; no decision depends on them. */
const lookAtCell: Statement = () => [
  {
    in_use: [0, 0, 0, 0],
    jobs_due: 0,
    deliveries_due: 0,
    parked: { jobs: 0, webhooks: 0 },
    nodes: {},
    unowned: [],
    holds: { region: 0, project: 0, host: 0 },
    key_age: null,
    firings_overdue: 0,
  },
];

/** The statements of the store that a simulated cell asks, by their names. The conformance test holds them to Postgres. */
export const STATEMENTS: Readonly<Record<string, Statement>> = {
  ask_time: askTime,
  look_at_cell: lookAtCell,
  list_signing_secrets: listSigningSecrets,
  list_environments_in_use: sweeps.listEnvironmentsInUse,
  list_left_hosts: nothing,
  forget_idle_left_hosts: nothing,

  create_jobs: createJobs,
  create_jobs_tagged: createJobs,
  create_jobs_flowing: createJobs,
  create_ordinary_job: createOrdinaryJob,
  create_ordinary_jobs: createOrdinaryJobs,
  create_ordinary_jobs_tagged: createOrdinaryJobs,
  create_uniform_jobs: createUniformJobs,
  create_uniform_jobs_tagged: createUniformJobs,
  find_job_state: byHand.findJobState,
  find_run: byHand.findRun,
  cancel_job: byHand.cancelJob,
  retry_run: byHand.retryRun,

  claim,
  claim_ordinary: claimOrdinary,
  claim_ordinary_one: claimOrdinaryOne,
  claim_keyed: claimKeyed,
  claim_whole: claimWhole,
  find_watched_targets: hosts.findWatchedTargets,
  settle,
  settle_whole: settleWhole,
  settle_ordinary: settleOrdinary,
  settle_keyed: settleKeyed,
  find_started: findStarted,
  claim_deliveries: claimDeliveries,
  settle_deliveries: settleDeliveries,
  settle_failed_deliveries: settleDeliveries,
  find_target_urls: sweeps.findTargetUrls,
  find_endpoint_urls: sweeps.findEndpointUrls,
  park_jobs: park("open_jobs"),
  park_webhooks: park("open_deliveries"),
  list_parked_jobs: listParked("open_jobs"),
  list_parked_webhooks: listParked("open_deliveries"),
  release_jobs: release("open_jobs"),
  release_webhooks: release("open_deliveries"),

  sweep: sweeps.sweep,
  refill: sweeps.refill,
  list_shards_in_use: sweeps.listShardsInUse,
  create_shards: members.createShards,
  list_free_shards: members.listFreeShards,
  acquire_shards: members.acquireShards,
  renew_shards: members.renewShards,
  resign_shards: members.resignShards,

  add_node: members.addNode,
  find_node: members.findNode,
  list_nodes: members.listNodes,
  beat_node: members.beatNode,
  declare_dead: members.declareDead,
  list_lost: listLost,
  list_lost_deliveries: listLostDeliveries,
  list_held_regions: members.listHeldRegions,
  hold_regions: members.holdRegions,
  resume_regions: members.resumeRegions,
  set_project_held: members.setProjectHeld,
  change_webhook: changeWebhook,
  list_host_limits: members.listHostLimits,
  set_host_limit: members.setHostLimit,
  clear_host_limit: members.clearHostLimit,
  note_clock: members.noteClock,
  list_miscounted_flows: members.listMiscountedFlows,
  // Insights are no part of the model: nothing is rolled up.
  find_insight_progress: () => [],

  change_flow_key: changeFlowKey,
  empty_gate_calls: emptyGateCalls,
  empty_host_calls: hosts.emptyHostCalls,
  look_at_hosts: hosts.lookAtHosts,
  open_left_hosts: hosts.openLeftHosts,
  watch_hosts: hosts.setWatched,
  park_host: hosts.parkHost,
  open_host: hosts.openHost,

  lock_project: nothing,
  create_bulk: bulks.createBulk,
  lock_bulk: bulks.lockBulk,
  abort_bulk: bulks.abortBulk,
  list_open_bulks: bulks.listOpenBulks,
  ...bulks.CANDIDATES,
  count_bulk_members: bulks.countMembers,
  start_bulk: bulks.startBulk,
  cancel_bulk_members: bulks.cancelMembers,
  retry_bulk_members: bulks.retryMembers,
  backfill_bulk_members: bulks.backfillMembers,
  list_timetables: bulks.listTimetables,
  list_firings: bulks.listFirings,

  list_due_schedules: firings.listDueSchedules,
  fire_schedules: firings.fireSchedules,
  fire_bound_schedules: firings.fireBoundSchedules,
  find_schedule: firings.findSchedule,
  change_schedule: firings.changeSchedule,
  delete_schedule: firings.deleteSchedule,
};

/** Statements that only read. Under READ COMMITTED they see the rows as they were when the statement began. */
const READING = /^(ask|find|list|look_at_cell|sweep|refill)/;
export const isReading = (name: string): boolean => READING.test(name);

export function answer(
  tables: Tables,
  name: string,
  time: Parameters<Statement>[1],
  values: readonly unknown[],
) {
  const statement = STATEMENTS[name];
  if (statement === undefined) throw new Error(`the model has no statement ${name}`);
  return statement(tables, time, values);
}
