import { HOSTS_PARKED_BY_HAND_MAX } from "../../../shared/domain/host-state.ts";
import type { TestGateway, TestProject } from "../../support/gateway.ts";

/** Parks hosts by hand in the production environment, as many as it may park. */
export async function fillHosts(gateway: TestGateway, project: TestProject): Promise<void> {
  const { status } = await gateway.call("POST", "/v2/hosts/0.example.com/park", { key: project.production });
  if (status !== 200) throw new Error(`it was not parked: ${status}`);
  await gateway.query(
    `INSERT INTO target_hosts SELECT (jsonb_populate_record(h, jsonb_build_object('host', n || '.example.com'))).*
       FROM target_hosts h, generate_series(1, $2::int) AS n WHERE h.project_no = $1 AND h.environment = 1 AND h.host = '0.example.com'`,
    [project.no, HOSTS_PARKED_BY_HAND_MAX - 1],
  );
}
