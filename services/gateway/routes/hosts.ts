import type { Bus } from "../../../shared/bus/bus.ts";
import { sendCommands } from "../../../shared/bus/hints.ts";
import { readHostListQuery, viewHost } from "../../../shared/contract/host.ts";
import { viewList } from "../../../shared/contract/list.ts";
import { ApiError, resourceNotFound } from "../../../shared/domain/errors.ts";
import { readHost } from "../../../shared/domain/host-limit.ts";
import { HOSTS_PARKED_BY_HAND_MAX, type HostStanding } from "../../../shared/domain/host-state.ts";
import { PAGE_SIZE_MAX, parseQuery } from "../../../shared/domain/page.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { isHostOfTargets } from "../../../shared/domain/target.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import type { KeyToTake } from "../../../shared/store/resources/idempotency.ts";
import { listTargetHosts, openHost, parkHost } from "../../../shared/store/resources/target-hosts.ts";
import { keptAnswer } from "./kept-answer.ts";
import { createOneAtATime } from "./one-at-a-time.ts";
import type { Pager } from "./pager.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

export function hostRoutes(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  pager: Pager;
  shardsPerRegion: number;
}): RoutesOf<"hosts"> {
  const { db, bus, clock, pager, shardsPerRegion } = options;
  const inTurn = createOneAtATime();

  /** Changes of an environment's hosts exclude each other in Postgres. Here they wait in turn, without a connection. */
  const change = <Result>({ scope }: ApiRequest, act: () => Promise<Result>): Promise<Result> =>
    inTurn(JSON.stringify(scope), act);
  const shardOfProject = ({ scope }: ApiRequest) => shardOf(scope.projectNo, shardsPerRegion);

  return {
    listHosts: {
      body: null,
      answerBytesMax: PAGE_BYTES_MAX,
      async answer({ caller, scope, query }) {
        const asked = readHostListQuery(query);
        const { state } = asked;
        const walk = pager.walk("GET /v2/hosts", caller, asked, { state });
        const page = { after: walk.beforeId, limit: walk.rowsMax, state };
        const found = await listTargetHosts(db, scope, page);
        const { rows, nextCursor } = walk.page(found.map((row) => ({ ...row, id: row.host })));
        return { status: 200, text: JSON.stringify(viewList(rows.map(viewHost), nextCursor)) };
      },
    },
    parkHost: {
      body: null,
      async create(request, key) {
        const host = readPathHost(request.id);
        parseQuery(request.query, []);
        const parked = await change(request, () =>
          parkHost(db, request.scope, host, request.cause(), keyWithAnswer(key), shardOfProject(request)),
        );
        switch (parked.kind) {
          case "key_taken":
            return parked.kind;
          case "too_many":
            throw tooManyParked();
          case "parked":
            return { status: 200, text: textOf(parked.row) };
        }
      },
      replay: async (_request, first) => keptAnswer(200, first),
    },
    openHost: {
      body: null,
      async create(request, key) {
        const host = readPathHost(request.id);
        parseQuery(request.query, []);
        const opened = await change(request, () =>
          openHost(db, request.scope, host, request.cause(), keyWithAnswer(key), shardOfProject(request)),
        );
        if (opened === "key_taken") return opened;
        sendCommands(bus, opened.owed, clock.now());
        return { status: 200, text: textOf(opened.row) };
      },
      replay: async (_request, first) => keptAnswer(200, first),
    },
  };
}

const textOf = (host: HostStanding) => JSON.stringify(viewHost(host));
const keyWithAnswer = (key: KeyToTake | null) =>
  key && { ...key, answerOf: (host: HostStanding) => Buffer.from(textOf(host)) };

/** A name of 253 characters, none of which JSON writes as two, and some short fields. */
const PAGE_BYTES_MAX = PAGE_SIZE_MAX * 512;

/** Reads a host in a path, in the spelling of targets. Throws resource_not_found for a text that no target has. */
function readPathHost(text: string): string {
  const host = readHost(text);
  if (host === null || !isHostOfTargets(host)) throw resourceNotFound();
  return host;
}

const tooManyParked = () =>
  new ApiError(
    "plan_limit_exceeded",
    `The environment's limit of ${HOSTS_PARKED_BY_HAND_MAX} hosts parked by hand is reached.`,
  );
