import { timestampOf } from "../../../shared/contract/timestamp.ts";
import { HOST_REQUESTS_MAX, readHost } from "../../../shared/domain/host-limit.ts";
import { clearHostLimit, listHostLimits, setHostLimit } from "../../../shared/store/cell/host-limits.ts";
import { makeCause } from "../cause.ts";
import { type Command, parseInteger, Refusal, table } from "../command.ts";

export const hostList: Command = {
  usage: "",
  async run(_input, { db }) {
    const hosts = (await listHostLimits(db)).map(({ host, requests, limitedAt }) => ({
      host,
      requests,
      limited_at: timestampOf(limitedAt),
    }));
    return {
      json: { data: hosts },
      text: table([
        ["HOST", "REQUESTS PER NODE", "SINCE"],
        ...hosts.map(({ host, requests, limited_at }) => [host, String(requests), limited_at]),
      ]),
    };
  },
};

/** The limit counts jobs and webhooks of all projects together. Every node keeps to it within 5 s. */
export const hostLimit: Command = {
  usage: "HOST --requests N   in flight from each delivery node; 0: nothing is sent there",
  operand: "HOST",
  options: ["requests"],
  async run(input, { db, operator }) {
    const host = parseHost(input.operand);
    const requests = parseInteger(input.required("requests"), "--requests", 0, HOST_REQUESTS_MAX);
    await setHostLimit(db, { host, requests }, await makeCause({ db, operator }));
    return {
      json: { host, requests },
      text: `each delivery node has at most ${requests} requests in flight to ${host}`,
    };
  },
};

export const hostClear: Command = {
  usage: "HOST",
  operand: "HOST",
  async run(input, { db, operator }) {
    const host = parseHost(input.operand);
    if (!(await clearHostLimit(db, host, await makeCause({ db, operator }))))
      throw new Refusal(`${host} is not limited`);
    return { json: { host, requests: null }, text: `${host} is not limited any more` };
  },
};

/** Throws Refusal. */
export function parseHost(text: string): string {
  const host = readHost(text);
  if (host === null) {
    throw new Refusal(
      "HOST must be a host alone, such as api.example.com, without a scheme, a port or a path",
    );
  }
  return host;
}
