import { FLOW_KEYS_KEPT_MAX } from "../../../shared/domain/flow-key.ts";
import type { TestGateway, TestProject } from "../../support/gateway.ts";

/** Pins as many flow keys ("kept1" and so on) as the production environment may keep. */
export async function fillFlows(gateway: TestGateway, project: TestProject): Promise<void> {
  await gateway.query(
    `INSERT INTO flow_keys (project_no, environment, flow_key, pinned)
     SELECT $1, 1, 'kept' || n, true FROM generate_series(1, $2) n`,
    [project.no, FLOW_KEYS_KEPT_MAX],
  );
}
