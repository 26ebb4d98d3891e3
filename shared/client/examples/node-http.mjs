// Node's own http: JOBWHEEL_SECRET=whsec_... node node-http.mjs
import http from "node:http";
import { NoRetry, RetryLater, receive, toNode } from "@jobwheel/client/receive";

const receiver = receive({
  secrets: process.env.JOBWHEEL_SECRET,
  ...(process.env.JOBWHEEL_SEAL_KEY && { openWith: process.env.JOBWHEEL_SEAL_KEY }),
  onAttempt({ jobId, attempt, payload }) {
    if (payload.invoice === undefined) throw new NoRetry("There is no invoice in the payload.");
    if (payload.isBusy && attempt === 1) throw new RetryLater("The printer is busy.", { after: 1 });
    console.log(`invoice ${payload.invoice} by ${jobId}, attempt ${attempt}`);
  },
});

http.createServer(toNode(receiver)).listen(Number(process.env.PORT ?? 3000), "127.0.0.1");
