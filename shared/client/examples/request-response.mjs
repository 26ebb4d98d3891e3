// Request and Response, on Bun: JOBWHEEL_SECRET=whsec_... bun request-response.mjs
// Deno: Deno.serve(receiver). Workers: export default { fetch: receiver }. Next.js: export const POST = receiver.
import { receive } from "@jobwheel/client/receive";

const receiver = receive({
  // An endpoint's own secret, as webhooks.create() has shown it.
  secrets: process.env.JOBWHEEL_SECRET,
  onAttempt({ jobId, attempt, payload }) {
    console.log(`invoice ${payload.invoice} by ${jobId}, attempt ${attempt}`);
  },
  onEvent({ event }) {
    if (event.type === "job.failed") console.log(`${event.data.job.id} has failed: ${event.data.run.error}`);
  },
});

export default { fetch: receiver, hostname: "127.0.0.1", port: Number(process.env.PORT ?? 3000) };
