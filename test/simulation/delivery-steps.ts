import { expect } from "bun:test";
import { randomBytes } from "node:crypto";
import fc from "fast-check";
import { timestampOf } from "../../shared/contract/timestamp.ts";
import { createIdSource, RUN_PREFIX } from "../../shared/domain/ids.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { claimShortFirst, settleShortFirst } from "../../shared/store/test-support.ts";
import { FUTURE } from "./job-steps.ts";
import { choice, pick, Step } from "./step.ts";

const runIds = createIdSource(randomBytes);

/** Claims the next attempt of a job, as worker and delivery do. */
export const claim = choice.map(
  (index) =>
    new Step(
      `claim job ${index}`,
      async (model, { gateway, project, nodeId, note }) => {
        const owed = model.jobs.filter(
          (job) => (job.status === "queued" || job.current !== null) && job.run_at < FUTURE,
        );
        const wanted = [model.jobs, model.owedByHand, owed, owed][index % 4] ?? [];
        const job = pick(wanted.length > 0 ? wanted : model.jobs, index);
        // A second claim by the same node would be granted again.
        if (job === undefined || job.current?.isSent) return;
        const attempt = job.current === null ? job.attempts + 1 : job.attempts;
        const runId = job.current?.runId ?? runIds.next(RUN_PREFIX, Date.now());
        const place = { projectNo: project.no, environment: job.env, region: job.region as Region };
        const [claimed] = await claimShortFirst(gateway.db, nodeId, [
          { ...place, jobId: job.id, attempt, runId },
        ]);
        const isOwed = job.status === "queued" || job.current !== null;
        const isBlocked = job.current === null && !model.hasQuota;
        const isFull = model.onWire >= model.terms.concurrency;
        const isEarly = Date.parse(job.run_at) > Date.now();
        const reasons = [isBlocked && "blocked", isFull && "no_permit", isEarly && "early"].filter(Boolean);
        // A permit may be kept for a moment for an environment that was called.
        const free = model.isCalledBeside(job.env) ? ["granted", "early"] : ["granted"];
        const expected = !isOwed ? ["gone"] : reasons.length > 0 ? reasons : free;
        expect(expected).toContain(claimed?.kind ?? "nothing");
        const isPutOff = claimed?.kind === "no_permit" || (claimed?.kind === "early" && !isEarly);
        // An environment comes for its permit only with a claim that asks for one.
        if (isPutOff || claimed?.kind === "granted") model.called.delete(job.env);
        if (isPutOff) model.waiting.add(job.env);
        note(`claim ${claimed?.kind}${job.current === null ? "" : " of a manual retry"}`);
        if (claimed?.kind !== "granted") return;
        expect(claimed.attempt.attemptsAllowed).toBe(job.allowed);
        const startedAt = timestampOf(claimed.attempt.startedAt);
        if (job.current === null) return model.begin(job, { id: runId, started_at: startedAt }, true);
        const run = model.run(job.env, runId);
        if (run === null) throw new Error("the owed run is missing");
        run.started_at = startedAt;
        job.current.isSent = true;
      },
      (model) => model.jobs.length > 0,
    ),
);

/** Settles an attempt, as delivery does at its end. */
export const settle = fc.tuple(choice, fc.constantFrom("succeeded", "failed", "failed", "timed_out")).map(
  ([index, status]) =>
    new Step(
      `settle ${index} as ${status}`,
      async (model, { gateway, project }) => {
        const job = pick(
          model.jobs.filter((job) => job.current?.isSent),
          index,
        );
        if (job?.current == null) return;
        const { runId } = job.current;
        const responseStatus = status === "timed_out" ? null : status === "succeeded" ? 200 : 500;
        const leaves = model.end(job, { status, responseStatus });
        for (const waiting of model.waiting) model.called.add(waiting);
        model.waiting.clear();
        await settleShortFirst(gateway.db, [
          {
            projectNo: project.no,
            environment: job.env,
            region: job.region as Region,
            shard: null,
            jobId: job.id,
            runId,
            status,
            responseStatus,
            error: status === "succeeded" ? null : "it broke",
            durationMs: 12,
            next: leaves === "queued" ? { status: leaves, waitMs: 0 } : { status: leaves },
          },
        ]);
      },
      (model) => model.onWire > 0,
    ),
);
