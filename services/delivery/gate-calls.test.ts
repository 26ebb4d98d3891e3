import { afterAll, beforeAll, expect, test } from "bun:test";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createLog } from "../../shared/platform/log.ts";
import { startStore, type TestStore } from "../../shared/store/test-support.ts";
import { createGateCalls } from "./gate-calls.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

test("a statement that fails for the calls of flow keys keeps no host from its calls, and the failure is told", async () => {
  const project = await store.addProject();
  for (const gate of ["kbusy", "hexample.com"])
    await store.query("INSERT INTO gate_calls (project_no, environment, gate) VALUES ($1, 1, $2)", [
      project,
      gate,
    ]);
  const gates = () => store.query("SELECT gate FROM gate_calls");
  const bus = createInProcessBus(createLog({ name: "test", level: "silent" }));
  const { db } = store;
  const failing = createGateCalls({
    bus,
    db: {
      ...db,
      run: <Row>(name: string, text: string, values: unknown[]) =>
        name === "empty_gate_calls" ? Promise.reject(new Error("too long")) : db.run<Row>(name, text, values),
    },
  });
  await expect(failing.tick()).rejects.toThrow("too long");
  expect(await gates()).toEqual([{ gate: "kbusy" }]);
  await createGateCalls({ bus, db }).tick();
  expect(await gates()).toEqual([]);
});
