import { randomBytes } from "node:crypto";
import { readInsightQuery, viewInsights } from "../../../shared/contract/insights.ts";
import {
  readProjectUpdate,
  readUsageQuery,
  viewProject,
  viewUsage,
} from "../../../shared/contract/project.ts";
import { viewSigningSecret } from "../../../shared/contract/signing-secret.ts";
import { idTimeMs, retypeId, SIGNING_SECRET_PREFIX } from "../../../shared/domain/ids.ts";
import { countWaiting } from "../../../shared/domain/insights/waiting.ts";
import { parseQuery } from "../../../shared/domain/page.ts";
import { makeSecret, maskSecret } from "../../../shared/domain/signing.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Seal } from "../../../shared/platform/seal/seal.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { findInsights } from "../../../shared/store/insights/insights.ts";
import { findWaiting } from "../../../shared/store/insights/waiting.ts";
import {
  countMonthRuns,
  countUsage,
  type ProjectRow,
  updateProject,
} from "../../../shared/store/resources/projects.ts";
import { findSigningSecret, rotateSigningSecret } from "../../../shared/store/resources/secrets.ts";
import type { ApiAnswer } from "../request/answer.ts";
import type { Authenticator } from "../request/authenticate.ts";
import { BODY_BYTES_MAX } from "../request/body.ts";
import { startSlicedWork } from "../request/sliced-work.ts";
import { keptAnswer } from "./kept-answer.ts";
import type { ApiRequest, RoutesOf } from "./route.ts";

/** The bytes read for the largest answer. They are more than the answer itself, which has 70 KB. */
const INSIGHTS_BYTES_MAX = 2_097_152;

export function projectRoutes(options: {
  db: Database;
  clock: Clock;
  seal: Seal;
  authenticator: Pick<Authenticator, "forget">;
}): RoutesOf<"project"> {
  const { db, clock, seal, authenticator } = options;

  async function show({ caller }: ApiRequest, project: ProjectRow): Promise<ApiAnswer> {
    const { environment, version: apiVersion } = caller;
    const runsThisMonth = await countMonthRuns(db, project.no);
    const facts = { ...project, apiVersion, createdAt: idTimeMs(project.id) };
    return { status: 200, text: JSON.stringify(viewProject(facts, environment, runsThisMonth)) };
  }

  return {
    getProject: {
      body: null,
      async answer(request) {
        parseQuery(request.query, []);
        return show(request, request.caller.project);
      },
    },
    updateProject: {
      body: { payload: "none", bytesMax: BODY_BYTES_MAX },
      async answer(request, body) {
        parseQuery(request.query, []);
        const { no, plan } = request.caller.project;
        const change = readProjectUpdate(body.value, plan);
        const project = await updateProject(db, no, change, request.cause());
        authenticator.forget(no);
        return show(request, project);
      },
    },
    getSigningSecret: {
      body: null,
      async answer({ scope, query }) {
        parseQuery(query, []);
        const found = await findSigningSecret(db, scope);
        if (found === null) throw new Error("the environment has no signing secret");
        const masked = maskSecret(seal.open(found.sealed));
        return { status: 200, text: JSON.stringify(viewSigningSecret(masked, found.previousExpiresAt)) };
      },
    },
    rotateSigningSecret: {
      body: null,
      async create({ scope, query, cause: causeOf }, key) {
        parseQuery(query, []);
        const secret = makeSecret(randomBytes);
        const textOf = (until: number) => JSON.stringify(viewSigningSecret(secret, until));
        const keyWithAnswer = key && { ...key, answerOf: (until: number) => seal.seal(textOf(until)) };
        const cause = causeOf();
        const id = retypeId(cause.requestId, SIGNING_SECRET_PREFIX);
        const rotated = { id, ...scope, sealed: seal.seal(secret) };
        const until = await rotateSigningSecret(db, rotated, cause, keyWithAnswer);
        return until === "key_taken" ? until : { status: 200, text: textOf(until) };
      },
      replay: async (_request, first) => keptAnswer(200, first, seal.open),
    },
    getInsights: {
      body: null,
      answerBytesMax: INSIGHTS_BYTES_MAX,
      async answer({ scope, query }) {
        const asked = readInsightQuery(query);
        const work = startSlicedWork(scope.projectNo);
        const found = await findInsights(db, scope, asked, work.pause);
        const waiting = await findWaiting(db, scope, asked.region);
        await work.pause();
        const facts = {
          ...{ ...found, period: asked.period, hosts: found.hosts.shown() },
          waiting: { ...countWaiting(waiting.found), isEstimated: waiting.isEstimated },
        };
        await work.pause();
        return { status: 200, text: JSON.stringify(await viewInsights(facts, work.pause)) };
      },
    },
    getUsage: {
      body: null,
      async answer({ caller, query }) {
        const now = clock.now();
        const { period, region } = readUsageQuery(query, now);
        const { no, plan } = caller.project;
        const usage = await countUsage(db, no, period, region);
        return { status: 200, text: JSON.stringify(viewUsage({ period, plan, ...usage }, now)) };
      },
    },
  };
}
