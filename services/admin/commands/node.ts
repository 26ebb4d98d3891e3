import { declareNodeDead, listNodes } from "../../../shared/store/cell/nodes.ts";
import { makeCause } from "../cause.ts";
import { type Command, Refusal, table } from "../command.ts";

const DECIMALS = 1;

export const nodeList: Command = {
  usage: "",
  async run(_input, { db }) {
    const nodes = (await listNodes(db)).map((node) => ({
      id: node.id,
      name: node.name,
      kind: node.kind,
      regions: node.regions,
      dead: node.dead,
      silent_ms: Math.round(node.silentMs),
    }));
    return {
      json: { data: nodes },
      text: table([
        ["ID", "NAME", "KIND", "DEAD", "LAST HEARD", "REGIONS"],
        ...nodes.map((node) => [
          String(node.id),
          node.name,
          node.kind,
          node.dead ? "yes" : "no",
          `${(node.silent_ms / 1_000).toFixed(DECIMALS)} s ago`,
          node.regions.join(","),
        ]),
      ]),
    };
  },
};

/**
 * The operator's word is the proof: the node's attempts on the wire are taken for lost and tried again. If the node is
 * alive after all, a target may get the same job twice at once.
 */
export const nodeDead: Command = {
  usage: "NAME",
  operand: "NAME",
  async run(input, { db, operator }) {
    const name = input.operand;
    const living = (await listNodes(db)).filter((node) => node.name === name && !node.dead);
    const declared: { id: number; kind: string }[] = [];
    for (const { id, kind } of living) {
      if (await declareNodeDead(db, id, await makeCause({ db, operator }))) declared.push({ id, kind });
    }
    if (declared.length === 0) throw new Refusal(`there is no living node named ${name}`);
    const kinds = declared.map(({ kind }) => kind).join(" and ");
    return { json: { name, declared_dead: declared }, text: `${name} is declared dead (${kinds})` };
  },
};
