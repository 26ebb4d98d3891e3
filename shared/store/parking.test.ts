import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { REGIONS } from "../domain/scope.ts";
import { claimAttempts } from "./claim.ts";
import { type ParkedLane, releaseParked } from "./parked.ts";
import { type Parked, parkAttempts } from "./parking.ts";
import { startStore, type TestStore } from "./test-support.ts";

setDefaultTimeout(60_000);

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const url = "https://target.example/hook";
const parkedOf = (projectNo: number, id: string, host: string): Parked => ({
  projectNo,
  environment: "production",
  region: "us-east",
  id,
  attempt: 1,
  host,
  url,
});
const release = (host: string, count: number, after: ParkedLane | null = null, countMin = 0) =>
  releaseParked(store.db, "jobs", { host, regions: REGIONS, after, count, countMin });

describe("a parked attempt", () => {
  test("is not claimed and is parked once", async () => {
    const project = await store.addProject();
    const [id = ""] = await store.addJobs(project, 1);
    const parked = parkedOf(project, id, "once.example");
    expect(await parkAttempts(store.db, "jobs", [parked])).toEqual(["parked"]);
    expect(await parkAttempts(store.db, "jobs", [parked])).toEqual(["gone"]);
    expect(await claimAttempts(store.db, nodeId, [store.claimOf(project, id)])).toEqual([{ kind: "gone" }]);
    const { attempts } = await release("once.example", 10);
    expect(attempts.map((attempt) => attempt.id)).toEqual([id]);
    expect(await claimAttempts(store.db, nodeId, [store.claimOf(project, id)])).toMatchObject([
      { kind: "granted" },
    ]);
  });
});
