import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import type { Bulk, Client } from "../../../shared/client/index.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
});
beforeEach(async () => {
  project = await gateway.addProject();
  client = clientOf(gateway, project.production);
});
afterAll(() => gateway.stop());

const create = (action: "cancel" | "retry" = "cancel") =>
  client.bulk.create({ action, filter: { all: true } });

/** Sets the operation's row as a worker would leave it. */
const set = ({ id }: Bulk, columns: string) =>
  gateway.query(`UPDATE bulk_operations SET ${columns} WHERE id = $1`, [idToUuid(id)]);

describe("GET /v2/bulk", () => {
  test("lists the environment's operations, newest first, page by page", async () => {
    const made = [await create(), await create("retry"), await create()].reverse();
    const ids = made.map(({ id }) => id);
    expect((await client.bulk.list()).data).toEqual(made);
    const walked: string[] = [];
    for await (const { id } of client.bulk.list({ limit: 2 })) walked.push(id);
    expect(walked).toEqual(ids);
    expect((await clientOf(gateway, project.development).bulk.list()).data).toEqual([]);
  });

  test("takes no filters, and no cursor of another list", async () => {
    for (const query of ["?status=done", "?action=cancel", "?limit=0", "?cursor=x"]) {
      const name = /\?(\w+)/.exec(query)?.[1] ?? "";
      const answer = await gateway.call("GET", `/v2/bulk${query}`, { key: project.production });
      readRefusal(answer, "invalid_request", name);
    }
    for (let n = 0; n < 2; n++) await gateway.createJob(project);
    const { next_cursor: cursor } = await client.jobs.list({ limit: 1 });
    await refusalOf(client.bulk.list({ cursor: cursor ?? "" }), "invalid_request", "cursor");
  });
});

describe("GET /v2/bulk/{id}", () => {
  test("shows how far the operation has come", async () => {
    const bulk = await create();
    await set(bulk, "counted = 7, sample = '{job_01arz3ndektsv4rrffq69g5fav}'");
    expect(await client.bulk.get(bulk.id)).toEqual({ ...bulk, sample: ["job_01arz3ndektsv4rrffq69g5fav"] });
    await set(bulk, "status = 3, matched = 7, done = 3, skipped = 2, failed = 1, started_at = now()");
    expect(await client.bulk.get(bulk.id)).toMatchObject({
      ...{ status: "running", matched: 7, done: 3, skipped: 2, failed: 1 },
      ...{ started_at: expect.any(String), ended_at: null },
    });
    await set(bulk, "status = 4, done = 4, ended_at = now()");
    expect(await client.bulk.get(bulk.id)).toMatchObject({ status: "done", ended_at: expect.any(String) });
  });

  test("does not find an operation of the other environment, or one that never was", async () => {
    const { id } = await create();
    await refusalOf(clientOf(gateway, project.development).bulk.get(id), "resource_not_found");
    for (const unknown of ["blk_01arz3ndektsv4rrffq69g5fav", "x", id.replace("blk", "job")]) {
      await refusalOf(client.bulk.get(unknown), "resource_not_found");
    }
  });
});

describe("POST /v2/bulk/{id}/abort", () => {
  test.each([
    ["counting", "status = 0"],
    ["waiting", "status = 2, matched = 7"],
    ["running", "status = 3, matched = 7, done = 3, skipped = 1"],
  ] as const)("ends an operation that is %s, with what was done", async (_, columns) => {
    const bulk = await create();
    await set(bulk, columns);
    const before = await client.bulk.get(bulk.id);
    const aborted = await client.bulk.abort(bulk.id);
    expect(aborted).toEqual({ ...before, status: "aborted", ended_at: aborted.ended_at });
    expect(Math.abs(Date.parse(aborted.ended_at ?? "") - Date.now())).toBeLessThan(60_000);
    expect(await client.bulk.get(bulk.id)).toEqual(aborted);
  });

  test.each([
    ["counted", "status = 1, ended_at = now()"],
    ["done", "status = 4, ended_at = now()"],
    ["aborted", "status = 5, ended_at = now()"],
  ] as const)("refuses an operation that is %s", async (_, columns) => {
    const bulk = await create();
    await set(bulk, columns);
    const before = await client.bulk.get(bulk.id);
    await refusalOf(client.bulk.abort(bulk.id), "invalid_request");
    expect(await client.bulk.get(bulk.id)).toEqual(before);
  });

  test("succeeds once, however many ask at once", async () => {
    const { id } = await create();
    const outcomes = await Promise.allSettled(Array.from({ length: 5 }, () => client.bulk.abort(id)));
    expect(outcomes.filter(({ status }) => status === "fulfilled").length).toBe(1);
    const [entries] = await gateway.query<{ count: number }>(
      "SELECT count(*)::int AS count FROM audit_entries WHERE action = 'bulk.abort' AND project_no = $1",
      [project.no],
    );
    expect(entries?.count).toBe(1);
  });

  test("does not find an operation of the other environment", async () => {
    const { id } = await create();
    await refusalOf(clientOf(gateway, project.development).bulk.abort(id), "resource_not_found");
    expect((await client.bulk.get(id)).status).toBe("counting");
  });
});
