import { BULK_PREFIX, parseId } from "../../../shared/domain/ids.ts";
import { abortAnyBulk, listUnfinishedBulks } from "../../../shared/store/cell/open-bulks.ts";
import { makeCause } from "../cause.ts";
import { type Command, Refusal, table } from "../command.ts";

/** An operator would hardly read more. */
const LISTED_MAX = 1_000;

export const bulkList: Command = {
  usage: "",
  async run(_input, { db }) {
    const bulks = (await listUnfinishedBulks(db, LISTED_MAX)).map((bulk) => ({
      id: bulk.id,
      project_id: bulk.projectId,
      environment: bulk.environment,
      action: bulk.action,
      status: bulk.status,
      per_second: bulk.perSecond,
      matched: bulk.matched,
      judged: bulk.judged,
    }));
    return {
      json: { data: bulks },
      text: table([
        ["BULK OPERATION", "PROJECT", "ENVIRONMENT", "ACTION", "STATUS", "PER SECOND", "JUDGED", "OF"],
        ...bulks.map((bulk) => [
          ...[bulk.id, bulk.project_id, bulk.environment, bulk.action, bulk.status],
          ...[bulk.per_second, bulk.judged, bulk.matched ?? "?"].map(String),
        ]),
      ]),
    };
  },
};

/** Ends a bulk operation. Its work so far stays done, and it does nothing more after the answer. */
export const bulkAbort: Command = {
  usage: "ID",
  operand: "ID",
  async run({ operand }, { db, operator }) {
    const id = parseId(BULK_PREFIX, operand);
    if (id === null) throw new Refusal("ID must be the id of a bulk operation, such as blk_...");
    if (!(await abortAnyBulk(db, id, await makeCause({ db, operator }))))
      throw new Refusal(`no unfinished bulk operation has the id ${id}`);
    return { json: { id, status: "aborted" }, text: `${id} is aborted` };
  },
};
