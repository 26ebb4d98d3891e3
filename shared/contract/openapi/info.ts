import { TAKE_TIMEOUT_MS } from "../../domain/body.ts";
import { type ErrorCode, STATUS_OF_CODE } from "../../domain/errors.ts";
import { PLAN_TERMS, PLANS, RATE_WAIT_SECONDS_MAX } from "../../domain/plan.ts";
import { NEWEST_API_VERSION } from "../../domain/version.ts";
import { SHELL_VALUES_MAX } from "../json-scanner.ts";
import { EXPLANATIONS } from "./explanations.ts";

const codes = Object.entries(STATUS_OF_CODE) as [ErrorCode, number][];

const DESCRIPTION = `A background job scheduling service: a job is a URL, a JSON payload and rules for when to send it.
Every attempt is recorded as a run, and failed attempts are retried with exponential backoff and full jitter.

## Keys and environments
Every request carries \`Authorization: Bearer <API_KEY>\`. A key belongs to one project and one of its environments,
development or production; neither sees the resources of the other, and a backlog in the one does not hide jobs of the other. A key of scope \`read\` reads everything but the keys, and previews
timetables; a key of scope \`jobs\` does everything with jobs, bulk operations, flows and runs, and gets the project; neither does anything else.
Keys of scope \`full\` make, replace and delete the keys of their environment.

## Requests
Bodies are JSON in UTF-8. Unknown fields and query parameters are refused, as are \`null\` where no type allows it and two
members of the same name. HEAD works as GET does. Every POST takes an \`Idempotency-Key\`.

A path is taken as it was sent: dot segments, percent-encoded or not, and backslashes make it another path. A body holds at
most ${SHELL_VALUES_MAX.toLocaleString("en")} values outside its payloads, and one that is too large is received up to 64 MiB before it is refused. An answer over
64 KiB that is not taken within ${TAKE_TIMEOUT_MS / 1_000} seconds is given up, and what a client no longer waits for is not begun.

A connection is ended without an answer if its client closes its own side of it, or sends a further request, before the
answer has come. A head of more than 16 KB, trailers behind chunks, and anything but HTTP/1.1 are refused with 431, 400 or
505 and no body.

## Lists
Newest first; flows by their key and hosts by their name. \`next_cursor\` is the \`cursor\` of the next page and null on the last. A cursor works with the filters that
it was made with.

## Request rate
Counted for each project and environment over a sliding minute. A request that is answered \`rate_limit_exceeded\` does not
count. One that is answered \`service_unavailable\` may count. Every other request under /v2 with a valid key counts, also
one that fails validation. It counts until the tenth of a second in which it came is a whole minute past, so
\`RateLimit-Reset\` and \`Retry-After\` can be ${RATE_WAIT_SECONDS_MAX}.

| plan | requests per minute | concurrency | runs included a month | days that runs are kept |
| --- | --- | --- | --- | --- |
${PLANS.map((plan) => {
  const { requestsPerMinute, concurrency, runsIncluded, retentionDays } = PLAN_TERMS[plan];
  const numbers = [requestsPerMinute, concurrency, runsIncluded, retentionDays].map((n) =>
    n.toLocaleString("en"),
  );
  return `| ${[plan, ...numbers].join(" | ")} |`;
}).join("\n")}

## Errors
Every refusal has the same body, and each code has one status.

| status | code | when |
| --- | --- | --- |
${codes.map(([code, status]) => `| ${status} | \`${code}\` | ${EXPLANATIONS[code].when} |`).join("\n")}
`;

export const API_INFO = {
  title: "Jobwheel",
  version: NEWEST_API_VERSION,
  summary: "Background jobs at exact times.",
  description: DESCRIPTION,
  contact: { name: "Jobwheel" },
  license: { name: "Apache License 2.0", identifier: "Apache-2.0" },
};
