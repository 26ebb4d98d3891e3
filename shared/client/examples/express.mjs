// Express 5 or 4: npm install express, then JOBWHEEL_SECRET=whsec_... node express.mjs
import { receive, toNode } from "@jobwheel/client/receive";
import express from "express";

const receiver = receive({
  secrets: process.env.JOBWHEEL_SECRET,
  onAttempt({ jobId, attempt, payload }) {
    console.log(`invoice ${payload.invoice} by ${jobId}, attempt ${attempt}`);
  },
});

const app = express();
// The receiver stands before express.json(), since the bytes are verified as they came.
app.post("/hook", toNode(receiver));
app.use(express.json());
app.listen(Number(process.env.PORT ?? 3000), "127.0.0.1");
