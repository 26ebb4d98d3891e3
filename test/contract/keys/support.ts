import type { Client } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import type { TestGateway, TestProject } from "../../support/gateway.ts";

/** The client's `keys` with a key of scope full of the project's production environment. */
export function keysOf(gateway: TestGateway, project: TestProject, key = project.production): Client["keys"] {
  return clientOf(gateway, key).keys;
}

/** The gateway's status for the project, which tells whether it accepts requests with the key. */
export async function statusOf(gateway: TestGateway, key: string, port = gateway.port): Promise<number> {
  return (await gateway.call("GET", "/v2/project", { key, port })).status;
}

/** Adds live keys whose texts are unknown. */
export async function fillKeys(gateway: TestGateway, project: TestProject, count: number): Promise<void> {
  await gateway.query(
    `INSERT INTO api_keys (id, project_no, environment, scope, hash)
     SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || left(md5($1::int || ' ' || n), 20))::uuid,
            $1::int, 1, 'read', sha256(($1::int || ' ' || n)::bytea)
       FROM generate_series(1, $2::int) AS n`,
    [project.no, count],
  );
}
