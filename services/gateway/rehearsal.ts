import type { Cell } from "../../shared/process/cell.ts";
import { type Rehearsal, rehearse } from "../../shared/process/rehearsal.ts";
import { type GatewayOptions, startGateway } from "./start.ts";

const REQUESTS = 40;
const JOB = {
  target_url: "https://example.com/hook",
  payload: { rehearsal: "x".repeat(100) },
  region: "us-east",
};
/** All are asked by turns. Each has a statement of its own: a job alone, jobs of one retry policy, and jobs of several. */
const ASKED = [
  ["/v2/jobs", JSON.stringify(JOB)],
  ["/v2/jobs/batch", JSON.stringify({ jobs: [JOB, JOB] })],
  ["/v2/jobs/batch", JSON.stringify({ jobs: [JOB, { ...JOB, retry_policy: { max_attempts: 2 } }] })],
] as const;

/**
 * Answers requests of its own on a loopback port that nobody else knows, and creates jobs that nobody ever sees
 * (rehearsal.ts).
 */
export async function rehearseGateway(cell: Cell, options: GatewayOptions, msMax?: number): Promise<void> {
  await rehearse(cell, options.seal, (rehearsal) => answerSome(rehearsal, options), msMax);
}

async function answerSome({ cell, key, takeSteps }: Rehearsal, options: GatewayOptions): Promise<void> {
  const gateway = await startGateway({ ...options, ...cell, host: "127.0.0.1", port: 0 });
  try {
    await takeSteps(REQUESTS, async (index) => {
      const [path, body] = ASKED[index % ASKED.length] ?? ASKED[0];
      const response = await fetch(`http://127.0.0.1:${gateway.port}${path}`, {
        method: "POST",
        headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
        body,
      });
      const text = await response.text();
      if (response.status !== 201) throw new Error(`the answer was ${response.status} ${text}`);
    });
  } finally {
    await gateway.stop();
  }
}
