import { type ErrorCode, STATUS_OF_CODE } from "../../domain/errors.ts";
import { PLAN_TERMS, PLANS } from "../../domain/plan.ts";
import { NEWEST_API_VERSION } from "../../domain/version.ts";
import { EXPLANATIONS } from "./explanations.ts";

const codes = Object.entries(STATUS_OF_CODE) as [ErrorCode, number][];

const DESCRIPTION = `A background job scheduling service: a job is a URL, a JSON payload and rules for when to send it.
Every attempt is recorded as a run, and failed attempts are retried with exponential backoff and full jitter.

## Keys and environments
Every request carries \`Authorization: Bearer <API_KEY>\`. A key belongs to one project and one of its environments,
development or production; neither sees the resources of the other. A key of scope \`read\` reads everything and previews
timetables; a key of scope \`jobs\` does everything with jobs and runs, and gets the project; neither does anything else.

## Requests
Bodies are JSON in UTF-8. Unknown fields and query parameters are refused, as are \`null\` where no type allows it and two
members of the same name. HEAD works as GET does. Every POST takes an \`Idempotency-Key\`.

A connection is ended without an answer if its client closes its own side of it, or sends a further request, before the
answer has come. A head of more than 16 KB, trailers behind chunks, and what is no HTTP/1.1 are refused with 431, 400 or 505
and no body.

## Lists
Newest first. \`next_cursor\` is the \`cursor\` of the next page and null on the last. A cursor works with the filters that
it was made with.

## Request rate
Counted for each project and environment over a sliding minute. A refused request does not count.

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
  // The page says what it means that there is none. An SPDX identifier would need a license that is on its list.
  license: { name: "No license: all rights reserved", url: "https://choosealicense.com/no-permission/" },
};
