// Sends a job and waits for its end: JOBWHEEL_KEY=svc_dev_... node send.mjs http://127.0.0.1:3000/hook
import { createClient } from "@jobwheel/client";

const jobwheel = createClient({
  baseUrl: process.env.JOBWHEEL_URL ?? "http://127.0.0.1:8080",
  apiKey: process.env.JOBWHEEL_KEY,
  // Only receivers that have this key can read the payload.
  ...(process.env.JOBWHEEL_SEAL_KEY && { sealWith: process.env.JOBWHEEL_SEAL_KEY }),
});

let job = await jobwheel.jobs.create({ target_url: process.argv[2] ?? "", payload: { invoice: 4711 } });
while (job.status === "queued" || job.status === "running") {
  await new Promise((resolve) => setTimeout(resolve, 200));
  job = await jobwheel.jobs.get(job.id);
}
for await (const run of jobwheel.runs.list({ job_id: job.id })) {
  console.log(`attempt ${run.attempt}: ${run.status} ${run.response_status} ${run.error ?? ""}`);
}
console.log(`${job.id} has ${job.status}`);
