import { randomBytes } from "node:crypto";
import { viewError } from "../../../shared/contract/error.ts";
import { BodyReader } from "../../../shared/contract/json.ts";
import { readAdvanceBody } from "../../../shared/contract/test-clock.ts";
import { ApiError } from "../../../shared/domain/errors.ts";
import { createIdSource, REQUEST_PREFIX } from "../../../shared/domain/ids.ts";
import type { Log } from "../../../shared/platform/log.ts";
import type { OpsRoute } from "../../../shared/platform/ops.ts";
import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { Stopped, type Walker } from "./walk.ts";

const BODY_BYTES_MAX = 4_096;
/** The advances take turns, and each holds a connection. */
const ADVANCES_MAX = 32;

/** `GET /clock` and `POST /clock/advance`. `findWalker` answers null without a test clock, undefined during the start. */
export function clockRoutes(
  log: Log,
  clock: { now(): number },
  findWalker: () => Walker | null | undefined,
): Record<string, OpsRoute> {
  const ids = createIdSource(randomBytes);
  let advanceCount = 0;

  function walkerOf(): Walker {
    const walker = findWalker();
    if (walker === null)
      throw new ApiError(
        "resource_not_found",
        "This instance has no test clock: start one with npm start -- --test-clock and a DATA_DIR of its own.",
      );
    if (walker === undefined) throw new ApiError("service_unavailable", "The instance is still starting.");
    return walker;
  }

  /** A web page in a browser on this machine may not move the clock: browsers send an Origin with each POST. */
  function refuseBrowsers({ headers }: Request): void {
    if (headers.has("origin"))
      throw new ApiError("invalid_request", "A page in a browser may not advance the clock.");
  }

  async function advance(request: Request, keepOpen: () => void): Promise<object> {
    const walker = walkerOf();
    refuseBrowsers(request);
    if (advanceCount >= ADVANCES_MAX)
      throw new ApiError(
        "service_unavailable",
        `${ADVANCES_MAX} advances wait already: they go one after the other.`,
      );
    advanceCount++;
    try {
      const body = readAdvanceBody(await readJson(request));
      keepOpen();
      return await walker.advance(body, request.signal);
    } finally {
      advanceCount--;
    }
  }

  const answering =
    (act: (request: Request, keepOpen: () => void) => Promise<object>): OpsRoute =>
    async (request, keepOpen) => {
      const requestId = ids.next(REQUEST_PREFIX, clock.now());
      const headers = { "Request-Id": requestId };
      try {
        return Response.json(await act(request, keepOpen), { headers });
      } catch (error) {
        const refusal = refusalOf(error);
        if (refusal.code === "internal_error") log.error({ err: error, requestId }, "clock.failed");
        return Response.json(viewError(refusal, requestId), { status: refusal.status, headers });
      }
    };

  return {
    "GET /clock": answering(async () => walkerOf().look()),
    "POST /clock/advance": answering(advance),
  };
}

async function readJson(request: Request): Promise<unknown> {
  const bytes = await request.bytes();
  if (bytes.length > BODY_BYTES_MAX)
    throw new ApiError("payload_too_large", `The body must have at most ${BODY_BYTES_MAX} bytes.`);
  const reader = new BodyReader(bytes, "none");
  for (;;) {
    const body = reader.read();
    if (body !== null) return body.value;
  }
}

function refusalOf(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof Stopped || error instanceof StoreUnavailable)
    return new ApiError(
      "service_unavailable",
      "The advance was broken off. GET /clock tells where the clock stands; nothing that was due is lost.",
    );
  return new ApiError("internal_error", "An internal error occurred.");
}
