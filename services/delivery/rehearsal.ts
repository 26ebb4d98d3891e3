import { randomBytes } from "node:crypto";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import type { Region } from "../../shared/domain/scope.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { type Rehearsal, rehearse } from "../../shared/process/rehearsal.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import { createJobs, type JobToCreate } from "../../shared/store/resources/job-creation.ts";
import { createClaimAndSend } from "./claim-and-send.ts";
import { InFlight, NODE_LIMITS, RequestsPerHost } from "./concurrency.ts";
import { createDeliveryAttempts } from "./delivery-attempts.ts";
import { createJobAttempts } from "./job-attempts.ts";
import { openOutbound } from "./outbound.ts";
import type { StoreRetries } from "./retry-until-answered.ts";
import { createSigningSecrets } from "./signing-secrets.ts";

const STEPS = 30;
/** Statements for one item and for many are planned and decoded alike, but the first of each is slow. */
const JOBS_PER_STEP = [1, 1, 4];
/** Longer than any rehearsal, whose end breaks off what is being sent. A busy machine may take long for an answer. */
const TIMEOUT_MS = 60_000;
const PAYLOAD = JSON.stringify({ rehearsal: "x".repeat(100) });

/**
 * Claims jobs that nobody ever sees, sends them to a listener in this process and settles them, as a node that nobody
 * ever sees (rehearsal.ts). So the process rehearses before it joins the cell.
 */
export async function rehearseDelivery(
  cell: Cell,
  { regions, seal }: { regions: readonly Region[]; seal: Seal },
  msMax?: number,
): Promise<void> {
  const [region] = regions;
  if (region === undefined) return;
  const listener = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response("ok") });
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const shutdown = new AbortController();
  const sender = { outbound, clock: cell.clock, shutdown: shutdown.signal, timeoutMs: TIMEOUT_MS };
  const place = { region, seal, sender, targetUrl: `http://127.0.0.1:${listener.port}/` };
  try {
    await rehearse(cell, seal, (rehearsal) => deliverSome(rehearsal, place), msMax);
  } finally {
    shutdown.abort();
    await outbound.close();
    await listener.stop(true);
  }
}

async function deliverSome(
  { cell, project, takeSteps }: Rehearsal,
  {
    region,
    seal,
    sender,
    targetUrl,
  }: {
    region: Region;
    seal: Seal;
    sender: Parameters<typeof createJobAttempts>[1]["sender"];
    targetUrl: string;
  },
): Promise<void> {
  const nodeId = await addNode(cell.db, {
    kind: "delivery",
    name: project.id,
    regions: [region],
    process: "rehearsal",
  });
  if (nodeId === null) throw new Error("The node of a rehearsal was not added.");
  const ids = createIdSource(randomBytes);
  let unsettledCount = 0;
  let settled = Promise.withResolvers<void>();
  // A rehearsal tries nothing again.
  const retries: StoreRetries = {
    untilAnswered: (ask) => ask(),
    async untilSettled(item, settle) {
      try {
        if (item.error !== null) throw new Error(item.error);
        return await settle(item);
      } catch (error) {
        settled.reject(error);
        throw error;
      }
    },
    warn: (_, error) => settled.reject(error),
  };
  const common = { nodeId, ids, retries };
  const claimAndSend = createClaimAndSend(cell, {
    jobs: createJobAttempts(cell, { ...common, secretsOf: createSigningSecrets(cell.db, seal).of, sender }),
    webhooks: createDeliveryAttempts(cell, { ...common, seal, sender: { ...sender, scale: 1 } }),
    inFlight: new InFlight(NODE_LIMITS),
    hosts: new RequestsPerHost(NODE_LIMITS),
    room: () => NODE_LIMITS.attemptsMax,
    retries,
    onNext: () => undefined,
    onRoom: () => undefined,
    onParked: () => undefined,
    onFreed() {
      if (--unsettledCount === 0) settled.resolve();
    },
    onDeclaredDead: () => undefined,
  });
  const lanes = new Set<string>();
  const scope = { projectNo: project.no, environment: "production", region, shard: 0 } as const;
  const terms = { maxAttempts: 1, baseSeconds: 1, capSeconds: 1, cause: null };
  await takeSteps(STEPS, async (index) => {
    const count = JOBS_PER_STEP[index % JOBS_PER_STEP.length] ?? 1;
    const jobs = Array.from({ length: count }, (): JobToCreate => {
      const id = ids.next(JOB_PREFIX, cell.clock.now());
      // The job must be due by the clock of the transaction, which began earlier. So `runAt` is 0.
      return { id, ...scope, ...terms, targetUrl, payload: PAYLOAD, runAt: 0 };
    });
    const created = await createJobs(cell.db, jobs, lanes);
    const owed = created.flatMap((answer) => (answer.kind === "created" ? answer.owed : []));
    if (owed.length < count) throw new Error(`Of ${count} jobs ${owed.length} were created.`);
    unsettledCount = count;
    settled = Promise.withResolvers();
    settled.promise.catch(() => undefined);
    const answers = await Promise.all(owed.map((item) => claimAndSend(region, item)));
    // A claim is blocked if an operator holds the region.
    if (answers.some((answer) => answer?.kind === "blocked")) return;
    const other = answers.find((answer) => answer?.kind !== "granted");
    if (other !== undefined) throw new Error(`The answer to a claim was ${other?.kind}.`);
    await settled.promise;
  });
}
