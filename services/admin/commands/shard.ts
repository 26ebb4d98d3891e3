import { REGIONS } from "../../../shared/domain/scope.ts";
import { listNodes } from "../../../shared/store/cell/nodes.ts";
import { listShards } from "../../../shared/store/queue/shards.ts";
import { type Command, table } from "../command.ts";

export const shardList: Command = {
  usage: "",
  async run(_input, { db }) {
    const names = new Map((await listNodes(db)).map((node) => [node.id, node.name]));
    const shards = (await listShards(db, REGIONS)).map((shard) => ({
      region: shard.region,
      shard: shard.shard,
      epoch: shard.epoch,
      owner: shard.owner === null ? null : { id: shard.owner, name: names.get(shard.owner) ?? null },
      lease_left_ms: Math.round(shard.leaseLeftMs),
    }));
    return {
      json: { data: shards },
      text: table([
        ["REGION", "SHARD", "EPOCH", "LEASE LEFT", "OWNER"],
        ...shards.map((shard) => [
          shard.region,
          String(shard.shard),
          String(shard.epoch),
          `${shard.lease_left_ms} ms`,
          shard.owner === null ? "nobody" : (shard.owner.name ?? `node ${shard.owner.id}`),
        ]),
      ]),
    };
  },
};
