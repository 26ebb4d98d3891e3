import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Run } from "../../../shared/contract/run.ts";
import {
  type Answer,
  type JobView,
  readAs,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
  project = await gateway.addProject();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const retry = (runId: string, idempotencyKey: string, port = gateway.port, key = project.production) =>
  gateway.call("POST", `/v2/runs/${runId}/retry`, {
    key,
    port,
    headers: { "Idempotency-Key": idempotencyKey },
  });
const isReplayed = ({ headers }: Answer) => headers.get("idempotent-replayed") === "true";

async function failedOnce(owner = project): Promise<{ job: JobView; runId: string }> {
  const job = await gateway.createJob(owner);
  const { runId } = await gateway.attempt(owner, job, 1, { status: "failed", leaves: "failed" });
  return { job, runId };
}

describe("an Idempotency-Key of POST /v2/runs/{id}/retry", () => {
  test("begins one attempt, and is replayed as it began, whatever became of the attempt", async () => {
    const { job, runId } = await failedOnce();
    const first = await retry(runId, "a");
    const run = readAs(Run, first, 201);
    expect(isReplayed(first)).toBe(false);
    const expectReplays = async () => {
      for (const port of [gateway.port, mate.port]) {
        const again = await retry(runId, "a", port);
        expect({ status: again.status, text: again.text }).toEqual({ status: 201, text: first.text });
        expect(isReplayed(again)).toBe(true);
      }
    };
    await expectReplays();
    await gateway.attempt(project, job, 2, { status: "succeeded", leaves: "succeeded" });
    await expectReplays();
    const shown = await gateway.call("GET", `/v2/runs?job_id=${job.id}`, { key: project.production });
    expect(JSON.parse(shown.text).data.map(({ id }: { id: string }) => id)).toEqual([run.id, runId]);
  });

  test("on many requests at once over two gateways begins one attempt, and all get its answer", async () => {
    for (let round = 0; round < 5; round++) {
      const { runId } = await failedOnce();
      const answers = await Promise.all(
        Array.from({ length: 40 }, (_, n) => retry(runId, "b", n % 2 === 0 ? gateway.port : mate.port)),
      );
      expect(answers.map(({ status }) => status)).toEqual(Array(40).fill(201));
      expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
      expect(answers.filter((answer) => !isReplayed(answer))).toHaveLength(1);
    }
  });

  test("belongs to the run in the path, and is left free by a refused request", async () => {
    const [one, other] = [await failedOnce(), await failedOnce()];
    const first = await retry(one.runId, "c");
    expect(isReplayed(await retry(other.runId, "c"))).toBe(false);
    readRefusal(await retry(one.runId, "d"), "invalid_request");
    await gateway.attempt(project, one.job, 2, { status: "failed", leaves: "failed" });
    const second = await retry(one.runId, "d");
    expect(second.status).toBe(201);
    expect(isReplayed(second)).toBe(false);
    expect(second.text).not.toBe(first.text);
  });

  test("is replayed although the quota has been used up since", async () => {
    const hobby = await gateway.addProject("hobby");
    const { runId } = await failedOnce(hobby);
    const first = await retry(runId, "e", gateway.port, hobby.production);
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    const again = await retry(runId, "e", mate.port, hobby.production);
    expect(again.text).toBe(first.text);
    expect(isReplayed(again)).toBe(true);
    readRefusal(await retry(runId, "f", gateway.port, hobby.production), "invalid_request");
  });

  test("is looked at only after the run is known to be the caller's", async () => {
    const { runId } = await failedOnce();
    await retry(runId, "g");
    const stranger = await gateway.addProject();
    readRefusal(await retry(runId, "g", gateway.port, stranger.production), "resource_not_found");
    readRefusal(await retry(runId, "g", gateway.port, project.development), "resource_not_found");
  });
});
