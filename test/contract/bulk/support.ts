import { OPEN_BULKS_MAX } from "../../../shared/domain/bulk.ts";
import type { TestGateway, TestProject } from "../../support/gateway.ts";

/** Adds unfinished bulk operations to the production environment, as many as it may have. */
export async function fillBulk(gateway: TestGateway, project: TestProject): Promise<void> {
  await gateway.query(
    `INSERT INTO bulk_operations (project_no, environment, id, shard, action, status, per_second, dry_run, filter)
     SELECT $1::int, 1,
            (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || left(md5($1::int || ' ' || n), 20))::uuid,
            0, 0, 0, 50, true, '{"all":true}'
       FROM generate_series(1, $2::int) AS n`,
    [project.no, OPEN_BULKS_MAX],
  );
}
