import { timestampOf } from "../../../shared/contract/timestamp.ts";
import { PROJECT_PREFIX } from "../../../shared/domain/ids.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import {
  listHeldProjects,
  listHeldRegions,
  setProjectHeld,
  setRegionsHeld,
} from "../../../shared/store/cell/holds.ts";
import { clearHostLimit, listHostLimits, setHostLimit } from "../../../shared/store/cell/host-limits.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import type { OperatorCause } from "../../../shared/store/resources/audit.ts";
import { makeCause } from "../cause.ts";
import {
  type CellAccess,
  type Command,
  type Input,
  type Output,
  parseChoice,
  parseIdOf,
  Refusal,
  table,
} from "../command.ts";
import { parseHost } from "./host.ts";

/** Holds a project, a region, a host or the whole cell: sends nothing for it until `resume`. Requests in flight end. */
export const hold = holding(true);
export const resume = holding(false);

/** Lists the present holds. */
export const holdList: Command = {
  usage: "",
  async run(_input, { db }) {
    const regions = await listHeldRegions(db);
    const hosts = (await listHostLimits(db)).filter(({ requests }) => requests === 0);
    const held = [
      ...(await listHeldProjects(db)).map((name) => ({
        kind: "project",
        name,
        held_at: null,
        reason: "operator",
      })),
      ...regions.map(({ region: name, heldAt, isRestored }) => ({
        kind: "region",
        name,
        held_at: timestampOf(heldAt),
        reason: isRestored ? "restored" : "operator",
      })),
      ...hosts.map(({ host: name, limitedAt }) => ({
        kind: "host",
        name,
        held_at: timestampOf(limitedAt),
        reason: "operator",
      })),
    ];
    return {
      json: { data: held },
      text: table([
        ["KIND", "NAME", "SINCE", "WHY"],
        ...held.map(({ kind, name, held_at, reason }) => [
          kind,
          name,
          held_at ?? "see admin audit list",
          reason === "restored" ? "the database was restored" : "an operator",
        ]),
      ]),
    };
  },
};

function holding(held: boolean): Command {
  return {
    usage: "[--project ID | --region R | --host H]   without any: the whole cell",
    options: ["project", "region", "host"],
    run: (input, cell) => setHeld(input, cell, held),
  };
}

async function setHeld({ option }: Input, { db, operator }: CellAccess, held: boolean): Promise<Output> {
  const given = ["project", "region", "host"].filter((name) => option(name) !== undefined);
  if (given.length > 1) throw new Refusal(`only one of --${given.join(" and --")} can be given`);
  const cause = await makeCause({ db, operator });
  const project = option("project");
  if (project !== undefined) {
    const id = parseIdOf(PROJECT_PREFIX, project, "--project");
    if (!(await setProjectHeld(db, id, held, cause))) throw new Refusal(`there is no project ${id}`);
    return outputOf({ project: id }, `project ${id}`, held);
  }
  const host = option("host");
  if (host !== undefined) return setHostHeld(db, parseHost(host), held, cause);
  const region = option("region");
  const regions = region === undefined ? REGIONS : [parseChoice(region, "--region", REGIONS)];
  await setRegionsHeld(db, regions, held, cause);
  return outputOf({ regions }, regions.length === 1 ? `region ${regions[0]}` : "the whole cell", held);
}

/** A held host has a limit of 0 requests. `resume` removes the limit, also one from before the hold. */
async function setHostHeld(db: Database, host: string, held: boolean, cause: OperatorCause): Promise<Output> {
  if (held) await setHostLimit(db, { host, requests: 0 }, cause);
  else await clearHostLimit(db, host, cause);
  return outputOf({ host }, `host ${host}`, held);
}

function outputOf(subject: object, name: string, held: boolean): Output {
  return { json: { ...subject, held }, text: `${name} ${held ? "is held" : "goes on"}` };
}
