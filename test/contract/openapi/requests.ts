import { KEYS_MAX } from "../../../shared/domain/key-life.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../../../shared/domain/plan.ts";
import {
  type Answer,
  parseRaw,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { fillBulk } from "../bulk/support.ts";
import { fillFlows } from "../flows/support.ts";
import { fillHosts } from "../hosts/support.ts";
import { fillKeys } from "../keys/support.ts";
import type { PublishedOperation } from "./published.ts";

/** Real requests that make an operation answer each of its codes. */
export interface Requests {
  /** A request with which the operation succeeds, changed as `request` says. */
  send(operation: PublishedOperation, request?: GivenRequest): Promise<Answer>;
  /** The path of the operation, with a resource that was made for this request. */
  pathOf(operation: PublishedOperation): Promise<string>;
  /** One request for each body in the operation's examples. */
  succeed(operation: PublishedOperation): Promise<Answer[]>;
  /** Sends a POST twice with one key. Answers the second answer. */
  replay(operation: PublishedOperation): Promise<Answer>;
  /** Requests by the code that each one is to provoke. An operation that cannot answer this code answers another. */
  provocations: Record<string, (operation: PublishedOperation) => Promise<Answer>>;
  stop(): Promise<void>;
}

export interface GivenRequest {
  key?: string | null;
  path?: string;
  query?: string;
  /** A text is sent as it is. */
  body?: object | string | undefined;
  headers?: Record<string, string>;
}

const UNKNOWN_ID_BODY = "0".repeat(26);
/** A name without a path: the router takes a path with a backslash for another one. */
const UNKNOWN_NAME = "no%5Cpath";
/** More bytes than any body may have. */
const TOO_MANY_BYTES = 67_108_865;
/** The body's time at a gateway that only gets requests without their bodies. */
const HASTY_RECEIVE_MS = 200;

/** `outage` breaks the gateway's database for the time of a request. */
export async function prepareRequests(
  gateway: TestGateway,
  outage: (act: () => Promise<Answer>) => Promise<Answer>,
): Promise<Requests> {
  const hasty = await gateway.startMate({ receiveMs: HASTY_RECEIVE_MS });
  const project = await gateway.addProject();
  const { key: readKey } = await gateway.addKey(project, { scope: "read" });
  const { key: jobsKey } = await gateway.addKey(project, { scope: "jobs" });
  const exhausted = await gateway.addProject("pro", { requestRate: 1 });
  const spent = await gateway.addProject("hobby");
  const spentIds = await addFailedRun(spent);
  await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [spent.no]);
  // A project with a version that the service never had: only a bug or an operator's mistake makes one.
  const broken = await gateway.addProject();
  await gateway.query("UPDATE projects SET api_version = 'none' WHERE no = $1", [broken.no]);

  async function addFailedRun(owner: TestProject): Promise<Record<string, string>> {
    const job = await gateway.createJob(owner, { retry_policy: { max_attempts: 1 } });
    const { runId } = await gateway.attempt(owner, job, 1, { status: "failed", leaves: "failed" });
    return { job_id: job.id, run_id: runId };
  }

  async function addSchedule(owner: TestProject, name = newName()): Promise<Record<string, string>> {
    const body = { name, cron: "@yearly", target_url: TARGET_URL };
    const answer = await gateway.call("POST", "/v2/schedules", { key: owner.production, body });
    return { schedule_id: JSON.parse(answer.text).id };
  }

  /** Adds an endpoint with a delivery. The environment's older endpoints are removed to make room. */
  async function addWebhook({ no, production: key }: TestProject): Promise<Record<string, string>> {
    await gateway.query(
      `DELETE FROM webhooks
        WHERE project_no = $1 AND id NOT IN (SELECT id FROM webhooks WHERE project_no = $1 ORDER BY id DESC LIMIT 20)`,
      [no],
    );
    const body = { url: TARGET_URL, events: ["job.failed"] };
    const answer = await gateway.call("POST", "/v2/webhooks", { key, body });
    const { id } = JSON.parse(answer.text);
    const sample = await gateway.call("POST", `/v2/webhooks/${id}/test`, { key });
    return { webhook_id: id, delivery_id: JSON.parse(sample.text).id };
  }

  /** Adds a key. Keys that were made like this before are revoked to make room. */
  async function addKey({ no, production: key }: TestProject): Promise<Record<string, string>> {
    await gateway.query(
      "UPDATE api_keys SET revoked_at = now() WHERE project_no = $1 AND name IS NOT NULL AND revoked_at IS NULL",
      [no],
    );
    const body = { scope: "read", name: newName() };
    const answer = await gateway.call("POST", "/v2/keys", { key, body });
    return { key_id: JSON.parse(answer.text).id };
  }

  /** Ends the bulk operations of the project to make room for others, since no worker runs here. */
  const endBulk = ({ no }: TestProject) =>
    gateway.query("UPDATE bulk_operations SET ended_at = now() WHERE project_no = $1", [no]);

  async function addBulk({ production: key }: TestProject): Promise<Record<string, string>> {
    const body = { action: "cancel", filter: { all: true } };
    const answer = await gateway.call("POST", "/v2/bulk", { key, body });
    return { bulk_id: JSON.parse(answer.text).id };
  }

  /** Replaces the schedule in an example of a bulk operation by a schedule of the project. */
  async function withSchedule(body: object | undefined): Promise<object | undefined> {
    if (body === undefined || !("filter" in body)) return body;
    const filter = body.filter as object;
    if (!("schedule_id" in filter)) return body;
    return { ...body, filter: { ...filter, ...(await addSchedule(project)) } };
  }

  /** The functions that make resources on which operations succeed, by the name of the path's first parameter. */
  const addResources: Record<string, (owner: TestProject) => Promise<Record<string, string>>> = {
    job_id: async (owner) => ({ job_id: (await gateway.createJob(owner)).id }),
    run_id: addFailedRun,
    schedule_id: (owner) => addSchedule(owner),
    async name(owner) {
      const name = newName();
      await addSchedule(owner, name);
      return { name: encodeURIComponent(name) };
    },
    webhook_id: addWebhook,
    key_id: addKey,
    bulk_id: addBulk,
    async key({ production: key }) {
      const name = encodeURIComponent(`a/${newName().replace(" ", "+")}`);
      await gateway.call("PATCH", `/v2/flows/${name}`, { key, body: { paused: true } });
      return { key: name };
    },
    async host({ no, production: key }) {
      await gateway.query("DELETE FROM target_hosts WHERE project_no = $1", [no]);
      await gateway.call("POST", "/v2/hosts/api.example.com/park", { key });
      return { host: "api.example.com" };
    },
  };

  async function pathOf({ path }: PublishedOperation, owner = project): Promise<string> {
    const name = /\{(\w+)\}/.exec(path)?.[1];
    if (name === undefined) return path;
    const addResource = addResources[name];
    if (addResource === undefined) throw new Error(`nothing makes a ${name}`);
    return fill(path, await addResource(owner));
  }

  async function send(operation: PublishedOperation, request: GivenRequest = {}): Promise<Answer> {
    const { key = project.production, query = "", headers = {} } = request;
    if (operation.path === "/v2/bulk" && key === project.production) await endBulk(project);
    const body =
      operation.bodies.length === 0 ? undefined : (request.body ?? withNewName(operation.bodies[0]));
    const path = request.path ?? (await pathOf(operation));
    return gateway.call(operation.method, path + query, {
      ...(key === null ? {} : { key }),
      ...(body === undefined ? {} : { body }),
      headers,
    });
  }

  /** Sends the head of a request with this content length, and no body. */
  async function announce(operation: PublishedOperation, bodyBytes: number, port?: number): Promise<Answer> {
    const lines = [
      `${operation.method} ${await pathOf(operation)} HTTP/1.1`,
      "Host: test",
      `Authorization: Bearer ${project.production}`,
      "Content-Type: application/json",
      `Content-Length: ${bodyBytes}`,
    ];
    return parseRaw(await gateway.send(`${lines.join("\r\n")}\r\n\r\n`, port));
  }

  /** Sends the example with other fields in it. */
  async function sendWith(operation: PublishedOperation, fields: object): Promise<Answer> {
    return send(operation, { body: { ...withNewName(operation.bodies[0]), ...fields } });
  }

  /** Sends the request as a project that may have no further active schedule, webhook endpoint, key or bulk operation. */
  async function exceedPlan(operation: PublishedOperation): Promise<Answer> {
    const owner = await gateway.addProject("pro");
    await addWebhook(owner);
    await gateway.query(
      `INSERT INTO webhooks (project_no, environment, id, events, url, sealed_secret)
       SELECT project_no, environment, (left(id::text, 24) || lpad(n::text, 12, '0'))::uuid, events, url, sealed_secret
         FROM webhooks, generate_series(2, $2) AS n WHERE project_no = $1`,
      [owner.no, WEBHOOK_ENDPOINTS_MAX],
    );
    const isOfAnother = /^\/v2\/(?:hosts|flows)\//.test(operation.path);
    const path = isOfAnother
      ? fill(operation.path, { host: "another.example.com", key: "another" })
      : await pathOf(operation, owner);
    await fillKeys(gateway, owner, KEYS_MAX);
    await fillBulk(gateway, owner);
    await fillHosts(gateway, owner);
    await fillFlows(gateway, owner);
    await gateway.query("UPDATE schedules SET paused = true WHERE project_no = $1", [owner.no]);
    await gateway.query("UPDATE projects SET active_schedules = 1000 WHERE no = $1", [owner.no]);
    const isOfBulk = operation.path === "/v2/bulk";
    const body = operation.method === "PATCH" ? {} : withNewName(operation.bodies.at(isOfBulk ? 0 : -1));
    const resumes = operation.method === "PATCH" || operation.method === "PUT";
    // A resumed schedule exceeds the limit of schedules; a paused flow key exceeds that of flow keys.
    const fields = resumes ? { ...body, paused: operation.path.startsWith("/v2/flows") } : body;
    return send(operation, { key: owner.production, path, body: fields });
  }

  async function conflict(operation: PublishedOperation): Promise<Answer> {
    const path = await pathOf(operation);
    const headers = { "Idempotency-Key": `conflict in ${operation.id}` };
    await send(operation, { path, headers });
    return send(operation, { path, headers, body: { target_url: TARGET_URL, jobs: [] } });
  }

  const provocations: Requests["provocations"] = {
    invalid_request: (operation) => send(operation, { query: "?unknown=1" }),
    run_at_in_past: (operation) =>
      send(operation, { body: { target_url: TARGET_URL, run_at: "2020-01-01T00:00:00Z" } }),
    unauthorized: (operation) => send(operation, { key: null }),
    insufficient_scope: (operation) =>
      send(operation, { key: /^\/v2\/(?:jobs|runs|bulk|flows)/.test(operation.path) ? readKey : jobsKey }),
    async resource_not_found(operation) {
      const path = (await pathOf(operation)).replace(/[0-9a-z]{26}/, UNKNOWN_ID_BODY);
      return send(operation, { path: path.replace(/(?<=(?:by-name|flows|hosts)\/)[^/]+/, UNKNOWN_NAME) });
    },
    method_not_allowed: (operation) =>
      send({ ...operation, method: operation.path.includes("by-name") ? "DELETE" : "PUT" }),
    idempotency_conflict: conflict,
    request_timeout: (operation) => announce(operation, 2, hasty.port),
    payload_too_large: (operation) => announce(operation, TOO_MANY_BYTES),
    unsupported_media_type: (operation) => send(operation, { headers: { "Content-Type": "text/plain" } }),
    async rate_limit_exceeded(operation) {
      // The project has one request a minute. If it is available again, this request uses it up.
      const answer = await send(operation, { key: exhausted.production });
      return answer.status === 429 ? answer : send(operation, { key: exhausted.production });
    },
    async quota_exceeded(operation) {
      const isOfSchedule = operation.path.includes("{schedule_id}");
      return send(operation, {
        key: spent.production,
        path: isOfSchedule ? await pathOf(operation, spent) : fill(operation.path, spentIds),
        body: withoutRegions(withNewName(operation.bodies[0])),
      });
    },
    invalid_cron_expression: (operation) => sendWith(operation, { cron: "" }),
    interval_too_short: (operation) => sendWith(operation, { cron: "* * * * * *" }),
    plan_limit_exceeded: exceedPlan,
    async schedule_name_taken(operation) {
      await addSchedule(project, "taken");
      return sendWith(operation, { name: "taken" });
    },
    internal_error: (operation) => send(operation, { key: broken.production }),
    async service_unavailable(operation) {
      const path = await pathOf(operation);
      return outage(() => send(operation, { path }));
    },
  };

  return {
    send,
    pathOf,
    async succeed(operation) {
      const bodies = operation.bodies.length === 0 ? [undefined] : operation.bodies;
      const answers: Answer[] = [];
      // The requests go one after another: a key that is made for one request ends the key of the request before.
      for (const body of bodies)
        answers.push(await send(operation, { body: await withSchedule(withNewName(body)) }));
      if (operation.method !== "PUT") return answers;
      const path = fill(operation.path, { name: encodeURIComponent(newName()) });
      return [...answers, await send(operation, { path })];
    },
    async replay(operation) {
      const path = await pathOf(operation);
      const headers = { "Idempotency-Key": `replay of ${operation.id}` };
      const body = withNewName(operation.bodies[0]);
      await send(operation, { path, headers, body });
      return send(operation, { path, headers, body });
    },
    provocations,
    stop: hasty.stop,
  };
}

/** Replaces the parameters of the path by ids. */
function fill(path: string, ids: Record<string, string>): string {
  return path.replace(/\{(\w+)\}/g, (parameter, name: string) => ids[name] ?? parameter);
}

let lastName = 0;
const newName = () => `schedule ${++lastName}`;

/** Gives the body a new name: an environment has each name once. */
export function withNewName(body: object | undefined): object | undefined {
  return body !== undefined && "name" in body ? { ...body, name: newName() } : body;
}

/** A hobby project has one region. */
function withoutRegions(body: object | undefined): object | undefined {
  if (body === undefined) return undefined;
  return JSON.parse(JSON.stringify(body, (name, value) => (name === "region" ? undefined : value)));
}
