import { ApiError } from "../../../shared/domain/errors.ts";
import { checkSameBody, keyDigest } from "../../../shared/domain/idempotency.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import {
  type FirstAnswer,
  findFirstAnswer,
  type KeyToTake,
} from "../../../shared/store/resources/idempotency.ts";
import type { ApiRequest } from "../routes/route.ts";
import type { ApiAnswer } from "./answer.ts";

/** A request that is carried out once, however often it is sent. */
export interface KeyedRequest {
  scope: ApiRequest["scope"];
  /** Method and path, in the one spelling of all requests of this operation. */
  operation: string;
  key: string;
  /** SHA-256 of the body as a JSON value. */
  requestHash: Buffer;
  /** Carries out the request and takes the key in the same statement. Throws ApiError for a refusal, which leaves the key free. */
  create(key: KeyToTake): Promise<ApiAnswer | "key_taken">;
  /** Renders the answer to the first request again. */
  replay(first: FirstAnswer): Promise<ApiAnswer>;
}

export interface Idempotency {
  /** The first answer to this key in its 24 hours. Throws ApiError. */
  answer(request: KeyedRequest): Promise<ApiAnswer>;
}

/** A request waits for at most this many others, each of which was refused. A project has no more in progress. */
const TURNS_MAX = 500;
/** A key can expire between being found taken and being looked up. */
const LOOKS_MAX = 3;

export function createIdempotency(db: Database): Idempotency {
  /** The requests that this gateway is carrying out. Others with the same key wait here and do not ask Postgres. */
  const inProgress = new Map<string, { requestHash: Buffer; answer: Promise<ApiAnswer> }>();

  return {
    async answer(request) {
      const { scope, operation, requestHash } = request;
      const key = { digest: keyDigest(scope, operation, request.key), requestHash };
      const name = key.digest.toString("latin1");
      for (let turn = 0; turn < TURNS_MAX; turn++) {
        const first = inProgress.get(name);
        if (first === undefined) {
          const answer = carryOut(db, request, key);
          inProgress.set(name, { requestHash: key.requestHash, answer });
          try {
            return await answer;
          } finally {
            inProgress.delete(name);
          }
        }
        // A refused request leaves the key free, so the next one tries.
        const answer = await first.answer.catch(() => null);
        if (answer !== null) {
          checkSameBody(key.requestHash, first.requestHash);
          return replayed(answer);
        }
      }
      throw new StoreUnavailable(`${TURNS_MAX} requests with the same Idempotency-Key were refused before`);
    },
  };
}

/**
 * Carries out the request, and looks the key up only if that fails. If the key is taken, the first answer is owed, even if
 * the request would be refused by now.
 */
async function carryOut(db: Database, request: KeyedRequest, key: KeyToTake): Promise<ApiAnswer> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const outcome = await request.create(key).catch(refusalOf);
    if (outcome !== "key_taken" && !(outcome instanceof ApiError)) return outcome;
    const first = await findFirstAnswer(db, request.scope, key.digest);
    if (first !== null) {
      checkSameBody(key.requestHash, first.requestHash);
      return replayed(await request.replay(first));
    }
    if (outcome instanceof ApiError) throw outcome;
  }
  throw new StoreUnavailable(`an Idempotency-Key was taken and free by turns ${LOOKS_MAX} times`);
}

function refusalOf(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  throw error;
}

function replayed(answer: ApiAnswer): ApiAnswer {
  return { ...answer, headers: { ...answer.headers, "Idempotent-Replayed": "true" } };
}
