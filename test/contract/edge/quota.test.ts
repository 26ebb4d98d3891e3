import { afterAll, beforeAll, expect, test } from "bun:test";
import { passNearEnd } from "../../support/boundary.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, TARGET_URL, type TestGateway } from "../../support/gateway.ts";
import { newSchedule } from "../schedules/support.ts";

const DAY_MS = 86_400_000;

/** The gateway's clock. */
let clock: () => number;
let gateway: TestGateway;
beforeAll(async () => {
  clock = Date.now;
  gateway = await startTestGateway({ now: () => clock() });
});
afterAll(() => gateway.stop());

test("a refusal for the quota names the seconds to the rollover by the clock of Postgres, whatever the gateway's clock says", async () => {
  await passNearEnd(DAY_MS);
  const hobby = await gateway.addProject("hobby");
  const key = hobby.production;
  const job = await gateway.createJob(hobby);
  const { runId } = await gateway.attempt(hobby, job, 1, { status: "failed", leaves: "failed" });
  const { id: scheduleId } = await clientOf(gateway, key).schedules.create(newSchedule());
  await gateway.query("UPDATE flows SET month_runs = month_runs_max WHERE project_no = $1", [hobby.no]);
  const today = new Date();
  const [monthBegan, rollover] = [0, 1].map((months) =>
    Date.UTC(today.getUTCFullYear(), today.getUTCMonth() + months),
  ) as [number, number];
  // By this clock the month before ends in a second.
  clock = () => monthBegan - 1_000;

  const plain = { target_url: TARGET_URL };
  const requests: [path: string, body: object | undefined][] = [
    ["/v2/jobs", plain],
    ["/v2/jobs", { ...plain, tags: ["a"] }],
    ["/v2/jobs", { ...plain, flow: { key: "a" } }],
    ["/v2/jobs/batch", { jobs: [plain, plain] }],
    [`/v2/runs/${runId}/retry`, undefined],
    [`/v2/schedules/${scheduleId}/run`, undefined],
  ];
  for (const [index, [path, body]] of requests.entries()) {
    for (const headers of [{}, { "Idempotency-Key": `key ${index}` }]) {
      const askedAt = Date.now();
      const answer = await gateway.call("POST", path, { key, headers, ...(body && { body }) });
      readRefusal(answer, "quota_exceeded");
      const seconds = Number(answer.headers.get("retry-after"));
      const least = Math.floor((rollover - Date.now()) / 1_000);
      const most = Math.ceil((rollover - askedAt) / 1_000);
      const isRight = seconds >= least && seconds <= most;
      expect({ path, headers, isRight, seconds }).toEqual({ path, headers, isRight: true, seconds });
    }
  }
});
