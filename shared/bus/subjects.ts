import type { ProjectNo, Region } from "../domain/scope.ts";
import type { BeatKind } from "./bus.ts";

/** Every subject, and the filters with which a listener hears many (`*` is one word, `>` all that follow). */
export const subjects = {
  command: (region: Region, shard: number, projectNo: ProjectNo) => `cmd.${region}.${shard}.${projectNo}`,
  commandsOf: (region: Region) => `cmd.${region}.>`,
  commands: "cmd.>",
  due: (deliveryNodeId: number) => `due.${deliveryNodeId}`,
  answers: (workerNodeId: number) => `answers.${workerNodeId}`,
  hint: (region: Region, shard: number) => `hint.${region}.${shard}`,
  hintsOf: (region: Region) => `hint.${region}.*`,
  beat: (kind: BeatKind) => `beat.${kind}`,
};

/** Whether a listener with this filter hears the subject. Only the filters above occur: the wildcard comes last. */
export function subjectMatches(filter: string, subject: string): boolean {
  if (filter.endsWith(".>") || filter.endsWith(".*")) return subject.startsWith(filter.slice(0, -1));
  return filter === subject;
}
