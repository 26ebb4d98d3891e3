import { afterAll, beforeAll, expect, test } from "bun:test";
import { type Cell, startCell } from "../../support/cell.ts";
import { startTestGateway, type TestGateway } from "../../support/gateway.ts";
import { startTarget, type Target } from "../../support/target.ts";
import { type Json, readPublished } from "./published.ts";

let gateway: TestGateway;
let cell: Cell;
let target: Target;

beforeAll(async () => {
  [gateway, cell] = await Promise.all([startTestGateway(), startCell()]);
  target = startTarget();
});
afterAll(async () => {
  await cell.stop();
  await Promise.all([target.stop(), gateway.stop()]);
});

/** What HTTP itself adds to a request. */
const HTTP_HEADERS = ["accept", "accept-encoding", "connection", "content-length", "content-type", "host"];

test("an attempt reaches its target as the published document describes it", async () => {
  const published = await readPublished(gateway);
  const place = "#/webhooks/attempt/post";
  const { parameters } = published.look(place);
  const project = await cell.addProject();
  await Promise.all([cell.startWorker(), cell.startDelivery()]);
  await cell.addJobs(project, [{ targetUrl: target.url, payload: '{"invoice":4711}' }]);
  const [arrival] = await target.until((arrivals) => arrivals.length > 0);
  if (arrival === undefined) throw new Error("nothing arrived");

  parameters.forEach(({ name, required }: Json, index: number) => {
    const schemaPlace = `${place}/parameters/${index}/schema`;
    const value = arrival.headers[name.toLowerCase()];
    if (value === undefined) {
      expect(required, name).toBe(false);
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
});
