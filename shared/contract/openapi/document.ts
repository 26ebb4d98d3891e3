import type { Resource } from "../../domain/key.ts";
import { OPERATIONS } from "../operations/all.ts";
import type { Content, Operation } from "../operations/operation.ts";
import { describeAttempt, TARGETS_TAG } from "./attempt.ts";
import { describeEvent, ENDPOINTS_TAG } from "./event.ts";
import { headerComponents, headersOf } from "./headers.ts";
import { API_INFO } from "./info.ts";
import { parameterComponents, parametersOf } from "./parameters.ts";
import { createRefusals, type Refusals } from "./refusals.ts";
import { createSchemas, type Json, type Schemas } from "./schemas.ts";

const TAGS: Record<Resource, { name: string; description: string }> = {
  jobs: { name: "Jobs", description: "Units of background work: what is sent where, and when." },
  bulk: { name: "Bulk operations", description: "One action on many jobs, counted, paced and abortable." },
  flows: { name: "Flows", description: "Limits below the project's, by a key that jobs name." },
  runs: { name: "Runs", description: "The records of attempts." },
  schedules: { name: "Schedules", description: "What creates jobs again and again." },
  project: { name: "Project", description: "The project that owns the key, its limits and its usage." },
  hosts: { name: "Hosts", description: "Target hosts that are down, and what is parked for them." },
  webhooks: { name: "Webhooks", description: "The endpoints that are told how jobs end." },
  keys: { name: "Keys", description: "The API keys of the project and environment." },
};

/**
 * The OpenAPI document of the whole API, as JSON. `publicUrl` is where clients reach the service; null stands for the
 * origin that serves the document.
 */
export function describeApi(publicUrl: string | null): string {
  const schemas = createSchemas();
  const refusals = createRefusals(schemas);
  const operations: [string, Operation][] = Object.entries(OPERATIONS);
  const paths: Record<string, Json> = {};
  for (const [id, operation] of operations) {
    const { path, method } = operation;
    paths[path] = {
      ...paths[path],
      [method.toLowerCase()]: describeOperation(id, operation, schemas, refusals),
    };
  }
  const resources = new Set(operations.map(([, { resource }]) => resource));
  const attempt = describeAttempt(schemas);
  const event = describeEvent(schemas);
  return JSON.stringify({
    openapi: "3.1.1",
    info: API_INFO,
    servers: [{ url: publicUrl?.replace(/\/+$/, "") ?? "/", description: "This service." }],
    security: [{ ApiKey: [] }],
    tags: [...[...resources].map((resource) => TAGS[resource]), TARGETS_TAG, ENDPOINTS_TAG],
    paths,
    webhooks: { attempt: { post: attempt }, event: { post: event } },
    components: {
      securitySchemes: {
        ApiKey: {
          type: "http",
          scheme: "bearer",
          description: "`svc_dev_...` for the development environment, `svc_live_...` for production.",
        },
      },
      parameters: parameterComponents(schemas),
      headers: headerComponents(schemas),
      responses: refusals.components,
      schemas: schemas.components,
    },
  });
}

function describeOperation(id: string, operation: Operation, schemas: Schemas, refusals: Refusals): Json {
  const { method, resource, summary, description, body, status, mayCreate, response } = operation;
  const answerOf = (status: number) => ({
    description: status === 201 ? "Created." : "Done.",
    headers: headersOf(status, schemas, method === "POST"),
    content: describeContent(response, schemas),
  });
  return {
    operationId: id,
    tags: [TAGS[resource].name],
    summary,
    description,
    parameters: parametersOf(operation, schemas),
    ...(body === null
      ? {}
      : { requestBody: { required: body.isOptional !== true, content: describeContent(body, schemas) } }),
    responses: {
      [status]: answerOf(status),
      ...(mayCreate ? { 201: answerOf(201) } : {}),
      ...refusals.responsesOf(operation),
    },
  };
}

function describeContent({ schema, examples }: Content, schemas: Schemas): Json {
  const values = Object.entries(examples).map(([name, value]) => [name, { value }]);
  return { "application/json": { schema: schemas.refer(schema), examples: Object.fromEntries(values) } };
}
