import { timestampOf } from "../../../shared/contract/timestamp.ts";
import { AUDIT_PREFIX, listAudit } from "../../../shared/store/resources/audit.ts";
import { type Command, parseChoice, parseIdOf, parseInteger, table } from "../command.ts";
import { requireProject } from "./project.ts";

const ENTRIES_DEFAULT = 50;
const ENTRIES_MAX = 1_000;

/** The changes and their authors, newest first; `--before` takes the last `next`. `--by operator` leaves out keys. */
export const auditList: Command = {
  usage: "[--project ID] [--by operator] [--limit N] [--before ENTRY_ID]",
  options: ["project", "by", "limit", "before"],
  async run(input, { db }) {
    const projectId = input.option("project");
    const by = input.option("by");
    if (by !== undefined) parseChoice(by, "--by", ["operator"]);
    const before = input.option("before");
    const limit = parseInteger(input.option("limit") ?? String(ENTRIES_DEFAULT), "--limit", 1, ENTRIES_MAX);
    const beforeId = before === undefined ? null : parseIdOf(AUDIT_PREFIX, before, "--before");
    const project = projectId === undefined ? null : await requireProject(db, projectId, "--project");
    const entries = await listAudit(db, {
      projectNo: project?.no ?? null,
      isOfOperators: by !== undefined,
      beforeId,
      limit,
    });
    const data = entries.map((entry) => ({
      id: entry.id,
      at: timestampOf(entry.at),
      request_id: entry.requestId,
      by: entry.by,
      action: entry.action,
      subject: entry.subject,
      project_id: entry.projectId,
      environment: entry.environment,
      detail: entry.detail,
    }));
    const next = data.length === limit ? (data.at(-1)?.id ?? null) : null;
    return {
      json: { data, next },
      text: table([
        ["AT", "BY", "ACTION", "SUBJECT", "ENVIRONMENT", "REQUEST", "DETAIL"],
        ...data.map((entry) => [
          entry.at,
          entry.by.kind === "key" ? entry.by.id : entry.by.name,
          entry.action,
          entry.subject,
          entry.environment ?? "",
          entry.request_id,
          entry.detail === null ? "" : JSON.stringify(entry.detail),
        ]),
        ...(next === null ? [] : [[`more with --before ${next}`]]),
      ]),
    };
  },
};
