import { findHeader } from "../signature.ts";
import type { WebhookEvent } from "../webhooks.ts";
import { type Incoming, RefusedRequest } from "./answers.ts";

/** An attempt of a job, as the service sent it. */
export interface Attempt<Payload = Record<string, unknown>> {
  kind: "attempt";
  payload: Payload;
  /** The payload's JSON as it was written. Numbers beyond double precision are exact only here. */
  text: string;
  jobId: string;
  runId: string;
  /** The attempt's number, from 1. A later attempt of a job has a higher one. */
  attempt: number;
  /** When this attempt was due. */
  scheduledAt: Date;
  /** The schedule that made the job; null for any other job. */
  scheduleId: string | null;
  environment: WebhookEvent["environment"];
  /** The same on every attempt of the job: work that was done under it need not be done again. */
  idempotencyKey: string;
  /** W3C Trace Context; null if something on the way has removed it. */
  traceparent: string | null;
}

/** An event, as a webhook endpoint receives it. `event.type` tells what `event.data` holds. */
export interface ReceivedEvent {
  kind: "event";
  event: WebhookEvent;
  /** The body as it was signed. */
  text: string;
  /** True of a sample that was asked for by hand (`webhooks.test`). */
  isSample: boolean;
  traceparent: string | null;
}

/** Reads the kind of a request from its signed id: the id of a run, or of an event. Throws RefusedRequest. */
export function readKind(headers: Incoming["headers"]): { kind: "attempt" | "event"; id: string } {
  const id = findHeader(headers, "webhook-id") ?? "";
  if (id.startsWith("run_")) return { kind: "attempt", id };
  if (id.startsWith("evt_")) return { kind: "event", id };
  throw unreadable("webhook-id is the id of neither a run nor an event");
}

/** The attempt without its payload. Throws RefusedRequest for headers that the service does not send. */
export function readAttempt(
  headers: Incoming["headers"],
  signedId: string,
): Omit<Attempt, "payload" | "text"> {
  const read = (name: string) => {
    const value = findHeader(headers, name);
    if (value === null) throw unreadable(`it has no ${name}`);
    return value;
  };
  const [runId, jobId] = [read("service-run-id"), read("service-job-id")];
  const attempt = Number(read("service-attempt-fence"));
  const scheduledAt = new Date(read("service-scheduled-at"));
  const environment = readEnvironment(read("service-environment"));
  if (runId !== signedId) throw unreadable("service-run-id is not the id that is signed");
  if (!Number.isSafeInteger(attempt) || attempt < 1) throw unreadable("service-attempt-fence is no number");
  if (Number.isNaN(scheduledAt.getTime())) throw unreadable("service-scheduled-at is no instant");
  return {
    kind: "attempt",
    jobId,
    runId,
    attempt,
    scheduledAt,
    scheduleId: findHeader(headers, "service-schedule-id"),
    environment,
    idempotencyKey: findHeader(headers, "idempotency-key") ?? jobId,
    traceparent: findHeader(headers, "traceparent"),
  };
}

/** Throws RefusedRequest. */
export function readEvent(headers: Incoming["headers"], text: string, signedId: string): ReceivedEvent {
  const event = parseObject(text) as unknown as WebhookEvent;
  if (event.id !== signedId) throw unreadable("the event has another id than the one that is signed");
  return {
    kind: "event",
    event,
    text,
    isSample: findHeader(headers, "service-webhook-test") === "true",
    traceparent: findHeader(headers, "traceparent"),
  };
}

/** Throws RefusedRequest for a text that is no JSON object. */
export function parseObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      return value as Record<string, unknown>;
  } catch {
    // A text that is no JSON gets the same refusal as other JSON.
  }
  throw unreadable("its body is no JSON object");
}

function readEnvironment(text: string): WebhookEvent["environment"] {
  if (text === "development" || text === "production") return text;
  throw unreadable("service-environment is neither development nor production");
}

function unreadable(why: string): RefusedRequest {
  return new RefusedRequest("unreadable", 400, `This is no request of the service: ${why}.`);
}
