import { randomBytes } from "node:crypto";
import { signHeaders } from "../../../services/delivery/sign.ts";
import { createClient, type WebhookEvent } from "../../../shared/client/index.ts";
import {
  createMemory,
  type ReceiveOptions,
  type RefusedRequest,
  receive,
} from "../../../shared/client/receive/index.ts";
import { makeSecret } from "../../../shared/domain/signing.ts";

export const secret = makeSecret(randomBytes);
const TARGET_URL = "https://example.com/hook?from=jobwheel";
const NOW = 1_790_000_000_000;

/** The parts of a request. Parts that are given replace those that the service would send. */
export interface Sent {
  jobId?: string;
  runId?: string;
  attempt?: number;
  text?: string;
  url?: string;
  secrets?: string[];
  headers?: Record<string, string>;
  sentAt?: number;
}

export function attemptRequest(sent: Sent = {}): Request {
  const { jobId = "job_1", attempt = 1, text = '{"invoice":4711}', url = TARGET_URL } = sent;
  const { runId = `run_${jobId}_${attempt}`, secrets = [secret], sentAt = NOW } = sent;
  return new Request(url, {
    method: "POST",
    body: text,
    headers: {
      "content-type": "application/json",
      "service-job-id": jobId,
      "service-run-id": runId,
      "service-attempt": String(attempt),
      "service-attempt-fence": String(attempt),
      "service-scheduled-at": "2026-09-21T14:13:20.000Z",
      "service-environment": "production",
      "idempotency-key": jobId,
      ...signHeaders(text, { id: runId, sentAt, secrets }),
      ...sent.headers,
    },
  });
}

export const EVENT: WebhookEvent = {
  id: "evt_1",
  type: "job.canceled",
  created_at: "2026-09-21T14:13:20.000Z",
  api_version: "2026-11-01",
  project_id: "prj_1",
  environment: "production",
  data: {
    job: {
      id: "job_1",
      status: "canceled",
      target_url: TARGET_URL,
      region: "us-east",
      attempts: 0,
      schedule_id: null,
      created_at: "2026-09-21T14:13:19.000Z",
    },
    run: null,
  },
};

export function eventRequest({ sentAt = NOW, headers = {}, runId = EVENT.id }: Sent = {}): Request {
  const body = JSON.stringify(EVENT);
  const signed = signHeaders(body, { id: runId, sentAt, secrets: [secret] });
  return new Request("https://example.com/events", {
    method: "POST",
    body,
    headers: { ...signed, ...headers },
  });
}

/** Makes a receiver at the time of the requests. Answers it with the reasons of its refusals and its clock. */
export function listen<Payload = Record<string, unknown>>(options: Partial<ReceiveOptions<Payload>>) {
  const refusals: RefusedRequest["reason"][] = [];
  const clock = { now: NOW };
  const now = () => clock.now;
  const receiver = receive<Payload>({
    secrets: secret,
    memory: createMemory({ now }),
    onRefusal: ({ reason }) => refusals.push(reason),
    now,
    ...options,
  });
  return { receiver, refusals, clock };
}

export async function answerOf(answer: Promise<Response>): Promise<{ status: number; text: string }> {
  const response = await answer;
  return { status: response.status, text: await response.text() };
}

/** The bodies that a client with these options sends. */
export function recordBodies(options: { sealWith: string }) {
  const bodies: Record<string, unknown>[] = [];
  const client = createClient({
    baseUrl: "https://jobs.example.com",
    apiKey: "svc_live_x",
    ...options,
    async fetch(_, { body }) {
      bodies.push(JSON.parse(String(body)));
      return Response.json({});
    },
  });
  return { client, bodies };
}
