import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { CHECKOUT } from "../support/service-process.ts";
import { type RollingCell, startRollingCell } from "./rolling-cell.ts";
import { endAndJudge, NOTHING } from "./rolling-findings.ts";

setDefaultTimeout(600_000);

/** A worker that stops may delay jobs by one second, as promised; the other second is for a busy machine. */
const LATE_MS_MAX = 2_000;

let cell: RollingCell;
beforeAll(async () => {
  cell = await startRollingCell(CHECKOUT, 2);
});
afterAll(() => cell.stop());

test("every process is restarted under load: no request fails, no attempt is cut or doubled, and everything is sent in time", async () => {
  for (const name of cell.services.keys()) await cell.replace(name, CHECKOUT);
  await cell.replaceNats();
  expect(await endAndJudge(cell, LATE_MS_MAX)).toEqual(NOTHING);
});
