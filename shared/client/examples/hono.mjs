// Hono, on Bun: bun add hono, then JOBWHEEL_SECRET=whsec_... bun hono.mjs
import { receive } from "@jobwheel/client/receive";
import { Hono } from "hono";

const receiver = receive({
  secrets: process.env.JOBWHEEL_SECRET,
  onAttempt({ jobId, attempt, payload }) {
    console.log(`invoice ${payload.invoice} by ${jobId}, attempt ${attempt}`);
  },
});

const app = new Hono();
app.post("/hook", (c) => receiver(c.req.raw));

export default { fetch: app.fetch, hostname: "127.0.0.1", port: Number(process.env.PORT ?? 3000) };
