import fc from "fast-check";
import { claim, settle } from "./delivery.ts";
import { cancelJob, createBatch, createJob, getJob, listJobs } from "./jobs.ts";
import { patchProject, showProject } from "./project.ts";
import { getRun, listRuns, retryRun } from "./runs.ts";
import { Step } from "./step.ts";

const repeat = fc.constant(new Step("repeat", (_model, service) => service.repeat()));

/** What happens to jobs comes more often than what asks for them, so that most sequences get somewhere. */
export const STEPS = [
  createJob,
  createJob,
  createBatch,
  repeat,
  claim,
  claim,
  claim,
  settle,
  settle,
  cancelJob,
  retryRun,
  retryRun,
  getJob,
  getRun,
  listJobs,
  listRuns,
  showProject,
  patchProject,
];
