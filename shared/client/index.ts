/**
 * The client of the API, for Node 20 and newer, Bun and edge runtimes: it needs `fetch` and WebCrypto, and imports
 * nothing. The service answers no cross-origin requests (CORS), so pages of other origins cannot use it.
 *
 *   const jobwheel = createClient({ baseUrl: "https://jobs.example.com", apiKey });
 *   const job = await jobwheel.jobs.create({ target_url: "https://example.com/hook", payload: { order: 7 } });
 *   for await (const run of jobwheel.runs.list({ job_id: job.id })) console.log(run.status);
 */
export type { Answer, Answered, Call, RateLimit } from "./answer.ts";
export type { Bulk, BulkListQuery, BulkOperations, NewBulk } from "./bulk.ts";
export { type Client, type ClientOptions, createClient } from "./client.ts";
export { ApiError, type ApiErrorCode, ConnectionError, JobwheelError, TimeoutError } from "./errors.ts";
export type { FlowKey, FlowKeyListQuery, FlowKeyUpdate, Flows } from "./flows.ts";
export type { Host, HostListQuery, Hosts } from "./hosts.ts";
export type {
  CanceledJob,
  Job,
  JobBatch,
  JobExplanation,
  JobListQuery,
  Jobs,
  ListedJob,
  NewJob,
} from "./jobs.ts";
export type {
  ApiKey,
  DeletedApiKey,
  KeyListQuery,
  KeyRotation,
  Keys,
  NewApiKey,
  RevealedApiKey,
} from "./keys.ts";
export type { List, Page } from "./list.ts";
export type { Fetch } from "./one-try.ts";
export { RawJson } from "./payload.ts";
export type {
  InsightQuery,
  Insights,
  Project,
  Projects,
  ProjectUpdate,
  SigningSecret,
  UsageQuery,
  UsageReport,
} from "./project.ts";
export type { Run, RunListQuery, Runs } from "./runs.ts";
export type {
  DeletedSchedule,
  Firing,
  FiringListQuery,
  NewSchedule,
  Schedule,
  ScheduleListQuery,
  SchedulePreview,
  SchedulePut,
  Schedules,
  ScheduleUpdate,
  Timetable,
} from "./schedules.ts";
export { isSealed, type SealedPayload } from "./seal.ts";
export { makeSealKey, type SealKey } from "./seal-key.ts";
export type { CreationOptions, RequestOptions } from "./send.ts";
export { type ReceivedRequest, SignatureError, type SignatureRules, verifySignature } from "./signature.ts";
export type { ClockAdvance, ClockState, TestClock } from "./test-clock.ts";
export type {
  DeletedWebhook,
  Delivery,
  DeliveryListQuery,
  NewWebhook,
  RevealedWebhook,
  Webhook,
  WebhookEvent,
  WebhookListQuery,
  Webhooks,
  WebhookUpdate,
} from "./webhooks.ts";
