import type { Bus } from "../../shared/bus/bus.ts";
import type { Command } from "../../shared/bus/messages.ts";
import { HORIZON_MS } from "../../shared/domain/shard.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import { type Batcher, createBatcher } from "../../shared/store/batch.ts";
import type { Database } from "../../shared/store/database.ts";
import { type Created, createJobs, type JobToCreate } from "../../shared/store/jobs.ts";

/** The rows of one statement: more save little and make the first of them wait for the last. */
const JOBS_PER_STATEMENT_MAX = 100;
const BYTES_PER_STATEMENT_MAX = 1_048_576;
/** While one is being synced to disk the next is on its way. */
const STATEMENTS_IN_FLIGHT_MAX = 2;
/** Where it is reached the memory begins anew, which costs each lane one needless look at its row. */
const KNOWN_LANES_MAX = 100_000;

/** Creates jobs by group commit and tells the workers of those that are soon due. */
export function createJobCreation(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
}): Batcher<JobToCreate, Created> {
  const { db, bus, clock } = options;
  const knownLanes = new Set<string>();
  return createBatcher<JobToCreate, Created>({
    async run(jobs) {
      if (knownLanes.size > KNOWN_LANES_MAX) knownLanes.clear();
      const created = await createJobs(db, jobs, knownLanes);
      for (const command of commandsOf(jobs, created, clock.now() + HORIZON_MS)) {
        bus.sendCommand(command);
      }
      return created;
    },
    itemsMax: JOBS_PER_STATEMENT_MAX,
    inFlightMax: STATEMENTS_IN_FLIGHT_MAX,
    bytesOf: (job) => Buffer.byteLength(job.payload),
    bytesMax: BYTES_PER_STATEMENT_MAX,
  });
}

/** One command for each project and region of a committed batch. */
function commandsOf(
  jobs: readonly JobToCreate[],
  created: readonly Created[],
  horizonAt: number,
): Iterable<Command> {
  const commands = new Map<string, Command>();
  jobs.forEach(({ id: jobId, projectNo, environment, region, shard }, index) => {
    const answer = created[index];
    if (answer?.kind !== "created" || answer.dueAt > horizonAt) return;
    const place = `${projectNo}/${region}`;
    const command = commands.get(place) ?? { region, shard, projectNo, owed: [] };
    command.owed.push({ projectNo, environment, jobId, attempt: 1, dueAt: answer.dueAt });
    commands.set(place, command);
  });
  return commands.values();
}
