import { afterAll, beforeAll, expect, test } from "bun:test";
import { sampleRun } from "../../../shared/contract/event-sample.ts";
import { createIdSource, DELIVERY_PREFIX, EVENT_PREFIX, REQUEST_PREFIX } from "../../../shared/domain/ids.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { oweSample } from "../../../shared/store/resources/deliveries-by-hand.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../../support/cell.ts";
import { startTestGateway, type TestGateway } from "../../support/gateway.ts";
import { type Arrival, startTarget, type Target } from "../../support/target.ts";
import { type Json, type Published, readPublished } from "./published.ts";

let gateway: TestGateway;
let published: Published;
let cell: Cell;
let target: Target;
let endpoint: Target;

beforeAll(async () => {
  [gateway, cell] = await Promise.all([startTestGateway(), startCell()]);
  published = await readPublished(gateway);
  [target, endpoint] = [startTarget(), startTarget()];
  await Promise.all([cell.startWorker(), cell.startDelivery()]);
});
afterAll(async () => {
  await cell.stop();
  await Promise.all([target.stop(), endpoint.stop(), gateway.stop()]);
});

/** The headers that HTTP itself adds to a request. */
const HTTP_HEADERS = ["accept", "accept-encoding", "connection", "content-length", "content-type", "host"];

/** Expects every header and the body to be as `place` describes them. Answers the optional headers that are absent. */
function readAsDescribed(place: string, arrival: Arrival): string[] {
  const { parameters } = published.look(place);
  const absent: string[] = [];
  parameters.forEach(({ name, required }: Json, index: number) => {
    const schemaPlace = `${place}/parameters/${index}/schema`;
    const value = arrival.headers[name.toLowerCase()];
    if (value === undefined) {
      expect(required, name).toBe(false);
      absent.push(name);
      return;
    }
    const isNumber = published.look(schemaPlace).type === "integer";
    expect(published.findFaults(schemaPlace, isNumber ? Number(value) : value), name).toEqual([]);
  });
  const described = parameters.map(({ name }: Json) => name.toLowerCase());
  const received = Object.keys(arrival.headers).filter((name) => !HTTP_HEADERS.includes(name));
  expect(received.filter((name) => !described.includes(name))).toEqual([]);
  expect(arrival.headers["content-type"]).toBe("application/json");
  const schemaPlace = `${place}/requestBody/content/application~1json/schema`;
  expect(published.findFaults(schemaPlace, JSON.parse(arrival.body))).toEqual([]);
  return absent;
}

test("an attempt reaches its target as the published document describes it", async () => {
  const project = await cell.addProject();
  await cell.addJobs(project, [{ targetUrl: target.url, payload: '{"invoice":4711}' }]);
  const [arrival] = await target.until((arrivals) => arrivals.length > 0);
  if (arrival === undefined) throw new Error("nothing arrived");
  readAsDescribed("#/webhooks/attempt/post", arrival);
});

test("an event and a sample reach an endpoint as the published document describes them", async () => {
  const project = await cell.addProject();
  const { id } = await cell.addEndpoint(project, { url: endpoint.url });
  await cell.addJobs(project, [{ targetUrl: target.url }]);
  const [event] = await endpoint.until((arrivals) => arrivals.length === 1);
  if (event === undefined) throw new Error("nothing arrived");
  expect(readAsDescribed("#/webhooks/event/post", event)).toEqual(["Service-Webhook-Test"]);

  const ids = createIdSource((count) => crypto.getRandomValues(new Uint8Array(count)));
  const newId = (prefix: string) => ids.next(prefix, Date.now());
  const sample = {
    eventId: newId(EVENT_PREFIX),
    deliveryId: newId(DELIVERY_PREFIX),
    apiVersion: project.apiVersion,
    region: "us-east" as const,
    shard: shardOf(project.no, SHARDS_PER_REGION),
    runOf: sampleRun,
  };
  const scope = { projectNo: project.no, environment: "production" as const };
  const cause = { requestId: newId(REQUEST_PREFIX), keyNo: 1 };
  await oweSample(cell.db, scope, id, sample, cause, null);
  const [, arrival] = await endpoint.until((arrivals) => arrivals.length === 2);
  if (arrival === undefined) throw new Error("nothing arrived");
  expect(readAsDescribed("#/webhooks/event/post", arrival)).toEqual([]);
  expect(arrival.headers["webhook-id"]).toBe(sample.eventId);
});
