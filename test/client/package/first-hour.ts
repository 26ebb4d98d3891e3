import http from "node:http";
import type { AddressInfo } from "node:net";
import { ApiError, type Client, createClient, type Job, makeSealKey } from "@jobwheel/client";
import { type Attempt, RetryLater, receive, toNode } from "@jobwheel/client/receive";

/**
 * A user's program, which `delivery.test.ts` compiles in a clean folder: it makes a receiver, sends it a sealed job whose first
 * attempt fails, follows it to its end, and prints what it has seen.
 */
interface Invoice {
  invoice: number;
}

const key = makeSealKey();
const jobwheel: Client = createClient({
  baseUrl: process.env.JOBWHEEL_URL,
  apiKey: process.env.JOBWHEEL_KEY,
  sealWith: key,
});
const { secret } = await jobwheel.project.rotateSigningSecret();

const seen: Pick<Attempt<Invoice>, "attempt" | "payload">[] = [];
const receiver = receive<Invoice>({
  secrets: secret,
  openWith: [key],
  onAttempt({ attempt, payload }) {
    seen.push({ attempt, payload });
    if (attempt === 1) throw new RetryLater("not yet", { after: 1 });
  },
});
const server = http.createServer(toNode(receiver));
await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
const { port } = server.address() as AddressInfo;

let job: Job = await jobwheel.jobs.create({
  target_url: `http://127.0.0.1:${port}/invoices`,
  payload: { invoice: 4711 } satisfies Invoice,
  retry_policy: { base_seconds: 1, cap_seconds: 1 },
});
while (job.status === "queued" || job.status === "running") {
  await new Promise((resolve) => setTimeout(resolve, 100));
  job = await jobwheel.jobs.get(job.id);
}
const runs = await jobwheel.runs.list({ job_id: job.id });
const refused = await jobwheel.jobs.get("job_unknown").catch((error: unknown) => error);
server.close();
console.log(
  JSON.stringify({
    seen,
    status: job.status,
    errors: runs.data.map(({ error }) => error),
    members: Object.keys(job.payload),
    refused: refused instanceof ApiError ? refused.code : "nothing",
  }),
);
