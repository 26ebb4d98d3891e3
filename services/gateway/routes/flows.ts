import { readFlowKeyListQuery, readFlowKeyUpdate, viewFlowKey } from "../../../shared/contract/flow.ts";
import { viewList } from "../../../shared/contract/list.ts";
import { ApiError, resourceNotFound } from "../../../shared/domain/errors.ts";
import { FLOW_KEYS_KEPT_MAX, isFlowKey } from "../../../shared/domain/flow-key.ts";
import { PAGE_SIZE_MAX, parseQuery } from "../../../shared/domain/page.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { changeFlowKey, findFlowKey, listFlowKeys } from "../../../shared/store/resources/flow-keys.ts";
import { BODY_BYTES_MAX } from "../request/body.ts";
import { createOneAtATime } from "./one-at-a-time.ts";
import type { Pager } from "./pager.ts";
import type { RoutesOf } from "./route.ts";

export function flowRoutes({ db, pager }: { db: Database; pager: Pager }): RoutesOf<"flows"> {
  const inTurn = createOneAtATime();
  return {
    listFlows: {
      body: null,
      answerBytesMax: PAGE_BYTES_MAX,
      async answer({ caller, scope, query }) {
        const walk = pager.walk("GET /v2/flows", caller, readFlowKeyListQuery(query), {});
        const found = await listFlowKeys(db, scope, { after: walk.beforeId, limit: walk.rowsMax });
        const { rows, nextCursor } = walk.page(found.map((row) => ({ ...row, id: row.key })));
        return { status: 200, text: JSON.stringify(viewList(rows.map(viewFlowKey), nextCursor)) };
      },
    },
    getFlow: {
      body: null,
      async answer({ scope, id, query }) {
        const key = readPathFlowKey(id);
        parseQuery(query, []);
        const found = await findFlowKey(db, scope, key);
        if (found === null) throw resourceNotFound();
        return { status: 200, text: JSON.stringify(viewFlowKey(found)) };
      },
    },
    updateFlow: {
      body: { payload: "none", bytesMax: BODY_BYTES_MAX },
      async answer({ scope, id, query, cause }, body) {
        const key = readPathFlowKey(id);
        parseQuery(query, []);
        const change = readFlowKeyUpdate(body.value);
        // Changes of a key exclude each other in Postgres, as do those for which the kept keys of an environment are
        // counted. In this gateway they wait without a connection.
        const isCounted = change.paused === true || change.pinned === true;
        const row = await inTurn(JSON.stringify(isCounted ? scope : [scope, key]), () =>
          changeFlowKey(db, scope, key, change, cause()),
        );
        if (row === "too_many") throw tooManyKept();
        return { status: 200, text: JSON.stringify(viewFlowKey(row)) };
      },
    },
  };
}

/** A key of 64 characters, none of which JSON writes as two, and numbers. */
const PAGE_BYTES_MAX = PAGE_SIZE_MAX * 512;

function readPathFlowKey(text: string): string {
  if (!isFlowKey(text)) throw resourceNotFound();
  return text;
}

const tooManyKept = () =>
  new ApiError(
    "plan_limit_exceeded",
    `The environment's limit of ${FLOW_KEYS_KEPT_MAX} flow keys that are pinned or paused is reached.`,
  );
