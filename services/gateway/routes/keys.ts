import { hash as hashOnce, randomBytes } from "node:crypto";
import {
  readKeyListQuery,
  readNewKey,
  readOverlapHours,
  viewKey,
  viewRevealedKey,
} from "../../../shared/contract/key.ts";
import { viewList } from "../../../shared/contract/list.ts";
import { KEY_PREFIX, retypeId } from "../../../shared/domain/ids.ts";
import { makeKey } from "../../../shared/domain/key.ts";
import {
  decideKeyDeletion,
  decideKeyRotation,
  decideNewKey,
  type KeyStanding,
  requireKey,
} from "../../../shared/domain/key-life.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import type { Seal } from "../../../shared/platform/seal/seal.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import type { KeyToTake } from "../../../shared/store/resources/idempotency.ts";
import {
  type Asking,
  createOwnKey,
  deleteOwnKey,
  type KeyToAnswer,
  type LivingKeyRow,
  listOwnKeys,
  rotateOwnKey,
} from "../../../shared/store/resources/own-keys.ts";
import type { Authenticator } from "../request/authenticate.ts";
import { BODY_BYTES_MAX, type BodyRules } from "../request/body.ts";
import { keptAnswer } from "./kept-answer.ts";
import type { Pager } from "./pager.ts";
import { readPathId } from "./path-id.ts";
import type { ApiRequest, Created, RoutesOf } from "./route.ts";

const BODY: BodyRules = { payload: "none", bytesMax: BODY_BYTES_MAX };

/** The routes by which keys of scope `full` make and change keys of their own environment. */
export function keyRoutes(options: {
  db: Database;
  pager: Pager;
  seal: Seal;
  authenticator: Pick<Authenticator, "forget">;
}): RoutesOf<"keys"> {
  const { db, pager, seal, authenticator } = options;

  /** Makes a key, and answers with its text and the row of `act`. The answer kept for an Idempotency-Key is sealed. */
  async function reveal(
    { caller, scope, cause }: ApiRequest,
    key: KeyToTake | null,
    act: (
      made: { id: string; hash: Buffer },
      asking: Asking,
      key: KeyToAnswer | null,
    ) => Promise<LivingKeyRow | "key_taken">,
  ): Promise<Created> {
    const asking = { ...cause(), keyId: caller.keyId };
    const text = makeKey(scope.environment, randomBytes);
    const made = { id: retypeId(asking.requestId, KEY_PREFIX), hash: hashOnce("sha256", text, "buffer") };
    const shown = (row: LivingKeyRow) => JSON.stringify(viewRevealedKey(row, text));
    const keyWithAnswer =
      key === null ? null : { ...key, answerOf: (row: LivingKeyRow) => seal.seal(shown(row)) };
    const row = await act(made, asking, keyWithAnswer);
    return row === "key_taken" ? row : { status: 201, text: shown(row) };
  }

  return {
    createKey: {
      body: BODY,
      async create(request, key, body) {
        parseQuery(request.query, []);
        const { name, scope, hours } = readNewKey(body.value);
        return reveal(request, key, (made, asking, keyWithAnswer) =>
          createOwnKey(
            db,
            request.scope,
            { ...made, name, scope },
            (standing) => decideNewKey(standing, hours),
            asking,
            keyWithAnswer,
          ),
        );
      },
      replay: async (_request, first) => keptAnswer(201, first, seal.open),
    },
    listKeys: {
      body: null,
      async answer({ caller, scope, query }) {
        const walk = pager.walk("GET /v2/keys", caller, readKeyListQuery(query), {});
        const { beforeId, rowsMax: limit } = walk;
        const { rows, nextCursor } = walk.page(await listOwnKeys(db, scope, { beforeId, limit }));
        return { status: 200, text: JSON.stringify(viewList(rows.map(viewKey), nextCursor)) };
      },
    },
    rotateKey: {
      body: { ...BODY, isOptional: true },
      async create(request, key, body) {
        const id = readPathId(KEY_PREFIX, request.id);
        parseQuery(request.query, []);
        const decide = (standing: KeyStanding<LivingKeyRow>) => {
          const old = requireKey(standing, id);
          // The body is read here, so that an unknown key is answered 404 before any fault of the body.
          const overlapHours = readOverlapHours(body.value);
          return { key: old, overlapHours, endsAt: decideKeyRotation(standing, old, overlapHours) };
        };
        const rotated = await reveal(request, key, (made, asking, keyWithAnswer) =>
          rotateOwnKey(db, request.scope, made, decide, asking, keyWithAnswer),
        );
        // Without an overlap the old key ends on this gateway at once.
        authenticator.forget(request.scope.projectNo);
        return rotated;
      },
      replay: async (_request, first) => keptAnswer(201, first, seal.open),
    },
    deleteKey: {
      body: null,
      async answer({ caller, scope, id, query, cause }) {
        const keyId = readPathId(KEY_PREFIX, id);
        parseQuery(query, []);
        const asking = { ...cause(), keyId: caller.keyId };
        await deleteOwnKey(db, scope, keyId, (standing) => decideKeyDeletion(standing, keyId), asking);
        // The key ends on this gateway at once, and on others within the 5 s of every revocation.
        authenticator.forget(scope.projectNo);
        return { status: 200, text: JSON.stringify({ id: keyId, deleted: true }) };
      },
    },
  };
}
