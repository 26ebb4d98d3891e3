import { randomBytes } from "node:crypto";
import { tmpdir } from "node:os";
import { createProjectWithKeys } from "../../../../services/admin/create-project.ts";
import { createSeal } from "../../../../shared/platform/seal/seal.ts";
import { migrate } from "../../../../shared/store/cell/migrate.ts";
import { changeProject } from "../../../../shared/store/resources/projects.ts";
import { testCause } from "../../../support/cause.ts";
import { startNatsServer } from "../../../support/nats-server.ts";
import { claimPort } from "../../../support/port.ts";
import { isOk, spawnBound, until } from "../../harness/processes.ts";
import { askPostgres, type Prepared, type Site, type StoredQueries } from "./product.ts";

/** More than a benchmark asks for: a project's plan would allow less than a whole machine. */
const REQUESTS_PER_MINUTE = 1_000_000;

/** Jobwheel as operators run it: gateway, worker, delivery node and nats-server. */
export const prepareCell = (site: Site) => prepare(site, ["worker", "delivery", "gateway"]);
/** Jobwheel as one process. */
export const prepareStandalone = (site: Site) => prepare(site, ["standalone"]);

async function prepare(
  { wish, databaseUrl, db, environment, profiled, stops }: Site,
  services: string[],
): Promise<Prepared> {
  await migrate(databaseUrl);
  const secretsKey = randomBytes(32);
  const keys: string[] = [];
  const secrets: string[] = [];
  for (let number = 0; number < (wish.projects ?? 1); number++) {
    const terms = { name: `peers ${number}`, plan: "enterprise", defaultRegion: "us-east" } as const;
    const made = await createProjectWithKeys(db, createSeal(secretsKey), terms);
    await changeProject(db, made.project.id, { requestsPerMinuteOverride: REQUESTS_PER_MINUTE }, testCause());
    keys.push(made.keys.production);
    secrets.push(made.signingSecrets.production);
  }

  const pids = new Map<string, number>();
  const port = await claimPort();
  const settings: Record<string, string> = {
    ...environment,
    HOST: "127.0.0.1",
    PORT: String(port),
    DATABASE_URL: databaseUrl,
    SECRETS_KEY: secretsKey.toString("hex"),
    ALLOW_INSECURE_TARGETS: "true",
    ...(wish.shards === undefined ? {} : { SHARDS_PER_REGION: String(wish.shards), REGIONS: "us-east" }),
  };
  if (!services.includes("standalone")) {
    const nats = await startNatsServer();
    stops.push(nats.stop);
    pids.set("nats", nats.pid);
    settings.NATS_URL = nats.url;
  }
  return {
    async start() {
      for (const service of services) {
        const opsPort = await claimPort();
        const flags = service === profiled ? ["--cpu-prof", `--cpu-prof-dir=${tmpdir()}`] : [];
        const command = [process.execPath, ...flags, `services/${service}/main.ts`];
        pids.set(service, spawnBound(command, { ...settings, OPS_PORT: String(opsPort) }, stops));
        await until(`${service} is ready`, () => isOk(`http://127.0.0.1:${opsPort}/readyz`));
      }
    },
    ...{ pids, port, keys, secrets, usesPostgres: true },
    ...askPostgres(db, QUERIES),
  };
}

/** Due jobs are found lane by lane, as the sweep finds them. Jobs under way have a run and a node. */
const QUERIES: StoredQueries = {
  owing: `
SELECT EXISTS (SELECT FROM open_jobs WHERE run_id IS NOT NULL AND node_id IS NOT NULL)
    OR EXISTS (SELECT FROM lanes l, LATERAL (
                 SELECT FROM open_jobs o
                  WHERE o.project_no = l.project_no AND o.region = l.region AND o.environment = l.environment
                    AND o.due_at <= now()
                  LIMIT 1) due) AS owing`,
  count: "SELECT count(*)::int AS count FROM open_jobs",
};
