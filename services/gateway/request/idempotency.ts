import { ApiError } from "../../../shared/domain/errors.ts";
import { checkSameBody, keyDigest } from "../../../shared/domain/idempotency.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import {
  type FirstAnswer,
  findFirstAnswer,
  type KeyToTake,
} from "../../../shared/store/resources/idempotency.ts";
import type { Answer } from "./errors.ts";
import type { ApiRequest } from "./route.ts";

/** A request that is to be carried out once, however often it is sent. */
export interface KeyedRequest {
  scope: ApiRequest["scope"];
  /** Method and path, in the one spelling that all requests of this operation have. */
  operation: string;
  key: string;
  /** SHA-256 of the body as a JSON value. */
  requestHash: Buffer;
  /** Carries it out, the key in the same statement. Throws ApiError for a refusal, which leaves the key free. */
  create(key: KeyToTake): Promise<Answer | "key_taken">;
  /** Renders what was answered to the first request. */
  replay(first: FirstAnswer): Promise<Answer>;
}

export interface Idempotency {
  /** The first answer to this key within its life. Throws ApiError. */
  answer(request: KeyedRequest): Promise<Answer>;
}

/** Each time the request that was waited for was refused; a project has no more requests than that in progress. */
const TURNS_MAX = 500;
/** A key can reach its end between being found taken and being looked up. */
const LOOKS_MAX = 3;

export function createIdempotency(db: Database): Idempotency {
  /** What this gateway is carrying out. Whoever comes meanwhile with the same key waits for it and asks nobody else. */
  const inProgress = new Map<string, { requestHash: Buffer; answer: Promise<Answer> }>();

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
        // Refused, it has left the key free, and the next in line tries.
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
 * The key is looked up only where the request did not go through: with a key that is taken no refusal counts, since the
 * first answer is owed whatever has changed since.
 */
async function carryOut(db: Database, request: KeyedRequest, key: KeyToTake): Promise<Answer> {
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

function replayed(answer: Answer): Answer {
  return { ...answer, headers: { ...answer.headers, "Idempotent-Replayed": "true" } };
}
