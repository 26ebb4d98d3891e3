import { Ajv2020, type ValidateFunction } from "ajv/dist/2020.js";
import type { Answer, TestGateway } from "../../support/gateway.ts";

/**
 * The OpenAPI document of a gateway, read as a client would: by its words alone, with a validator that does not know
 * the code behind the document. Places in the document are JSON pointers.
 */
export interface Published {
  text: string;
  document: Json;
  operations: PublishedOperation[];
  /** The value at a place, with references followed. */
  look(place: string): Json;
  /**
   * The reasons why the value does not fit the schema at this place; empty if it fits. A member that the schema does
   * not name is a fault.
   */
  findFaults(schemaPlace: string, value: unknown): string[];
}

export interface PublishedOperation {
  id: string;
  method: string;
  path: string;
  /** Parameters as in the document: each has a name and names its part of the request. */
  parameters: Json[];
  /** Null if the operation takes no body. */
  bodySchema: Json;
  /** The request examples of the body. */
  bodies: Json[];
  answers: PublishedAnswer[];
}

export interface PublishedAnswer {
  status: number;
  schemaPlace: string;
  headers: PublishedHeader[];
  /** The codes that the schema allows; empty for an answer that is not a refusal. */
  codes: string[];
}

export interface PublishedHeader {
  name: string;
  required: boolean;
  schemaPlace: string;
}

// biome-ignore lint/suspicious/noExplicitAny: nothing is known of the document but what it says itself.
export type Json = any;

/** The headers that HTTP itself adds; a document need not name them. */
const HTTP_HEADERS = ["connection", "content-length", "content-type", "date"];
const METHODS = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
const DATE_TIME = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})$/;

export async function readPublished(gateway: TestGateway): Promise<Published> {
  const { text } = await gateway.call("GET", "/openapi.json");
  const document: Json = JSON.parse(text);
  // Unknown keywords and formats are errors: the document must be JSON Schema 2020-12 throughout.
  const ajv = new Ajv2020({ strict: true, allowUnionTypes: true, allErrors: true });
  ajv.addFormat("date-time", DATE_TIME);
  ajv.addFormat("uri", (uri) => URL.canParse(uri));
  // ajv gets the whole document as a schema, so that references within it resolve.
  ajv.addVocabulary(Object.keys(document));
  ajv.addSchema(document, "document");
  const validators = new Map<string, ValidateFunction>();

  function find(place: string): { place: string; node: Json } {
    const steps = place.split("/").slice(1).map(unescapeStep);
    const node = steps.reduce((inner: Json, step) => inner?.[step], document);
    if (node === undefined) throw new Error(`there is nothing at ${place}`);
    return typeof node.$ref === "string" ? find(node.$ref) : { place, node };
  }

  function readOperation(path: string, method: string): PublishedOperation {
    const { place, node } = find(`#/paths/${escapeStep(path)}/${method}`);
    const content = node.requestBody?.content["application/json"];
    const bodies = Object.values(content?.examples ?? {}).map((example: Json) => example.value);
    const answers = Object.keys(node.responses).map((status) => readAnswer(`${place}/responses`, status));
    const parameters = node.parameters.map(
      (_: Json, index: number) => find(`${place}/parameters/${index}`).node,
    );
    const bodySchema = content?.schema ?? null;
    return {
      id: node.operationId,
      method: method.toUpperCase(),
      path,
      parameters,
      bodySchema,
      bodies,
      answers,
    };
  }

  function readAnswer(responses: string, status: string): PublishedAnswer {
    const { place, node } = find(`${responses}/${status}`);
    const schemaPlace = `${place}/content/application~1json/schema`;
    const headers = Object.keys(node.headers).map((name): PublishedHeader => {
      const header = find(`${place}/headers/${escapeStep(name)}`);
      return { name, required: header.node.required === true, schemaPlace: `${header.place}/schema` };
    });
    const code = find(schemaPlace).node.properties.error?.properties?.code;
    const codes = code === undefined ? [] : code.const === undefined ? code.enum : [code.const];
    return { status: Number(status), schemaPlace, headers, codes };
  }

  return {
    text,
    document,
    operations: Object.keys(document.paths).flatMap((path) =>
      METHODS.filter((method) => method in document.paths[path]).map((method) => readOperation(path, method)),
    ),
    look: (place) => find(place).node,
    findFaults(schemaPlace, value) {
      let validate = validators.get(schemaPlace);
      if (validate === undefined) {
        validate = ajv.compile({ $ref: `document${schemaPlace}` });
        validators.set(schemaPlace, validate);
      }
      validate(value);
      return (validate.errors ?? []).map(({ instancePath, message, params }) =>
        [instancePath, message, JSON.stringify(params)].join(" "),
      );
    },
  };
}

/** Lists the undocumented parts of the answer, and the documented parts that it lacks. */
export function findAnswerFaults(
  published: Published,
  { answers }: PublishedOperation,
  answer: Answer,
): string[] {
  const documented = answers.find(({ status }) => status === answer.status);
  if (documented === undefined) return [`the status ${answer.status} is not documented`];
  const faults = published.findFaults(documented.schemaPlace, JSON.parse(answer.text));
  for (const { name, required, schemaPlace } of documented.headers) {
    const value = answer.headers.get(name);
    if (value === null && required) faults.push(`${name} is absent`);
    if (value === null) continue;
    const isNumber = published.look(schemaPlace).type === "integer";
    for (const fault of published.findFaults(schemaPlace, isNumber ? Number(value) : value)) {
      faults.push(`${name} ${fault}`);
    }
  }
  const names = documented.headers.map(({ name }) => name.toLowerCase());
  for (const name of answer.headers.keys()) {
    if (!names.includes(name) && !HTTP_HEADERS.includes(name)) faults.push(`${name} is not documented`);
  }
  if (answer.headers.get("content-type") !== "application/json") faults.push("it is no JSON");
  return faults;
}

export function escapeStep(step: string): string {
  return step.replaceAll("~", "~0").replaceAll("/", "~1");
}

function unescapeStep(step: string): string {
  return step.replaceAll("~1", "/").replaceAll("~0", "~");
}
