import fc from "fast-check";
import { claim, settle } from "./delivery-steps.ts";
import { cancelJob, createBatch, createJob, getJob, listJobs } from "./job-steps.ts";
import { patchProject, showProject } from "./project-steps.ts";
import { getRun, listRuns, retryRun } from "./run-steps.ts";
import { Step } from "./step.ts";

const repeat = fc.constant(new Step("repeat", (_model, service) => service.repeat()));

/** The attempts' steps are more frequent than the requests, so that most sequences make progress. */
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
