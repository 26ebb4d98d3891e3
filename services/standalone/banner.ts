import { resolve } from "node:path";
import type { ClockView } from "../../shared/contract/test-clock.ts";
import { type Config, DATA_DIR_DEFAULT, isLoopback } from "../../shared/platform/config.ts";
import { escapeControls } from "../../shared/platform/human-lines.ts";
import type { CreatedProject } from "../admin/create-project.ts";

/** The texts that the standalone shows to the person who has started it. */

/** The addresses at which it is reached. */
export interface Reached {
  api: string;
  ops: string;
}

/** The new project's keys, and the first request to make with them. Keys that were given are not shown. */
export function firstSteps(
  made: CreatedProject,
  { api, ops }: Reached,
  config: Pick<Config, "host" | "allowInsecureTargets" | "firstKeys">,
): string {
  const { firstKeys } = config;
  const development = firstKeys.development === null ? made.keys.development : "$DEVELOPMENT_KEY";
  const production = firstKeys.production === null ? made.keys.production : "$PRODUCTION_KEY";
  const tryIt = hasEcho(config)
    ? `Send a first job; its arrival at the echo receiver is shown here:

curl -sS ${api}/v2/jobs -H "Authorization: Bearer ${development}" \\
  -H 'Content-Type: application/json' \\
  -d '{"target_url": "${ops}/echo", "payload": {"hello": "world"}}'`
    : "The echo receiver is there when HOST is a loopback address and ALLOW_INSECURE_TARGETS is not false.";
  return `
Created project ${made.project.id} (plan scale). Its keys are shown this once:
  development  ${development}
  production   ${production}

${tryIt}
`;
}

/**
 * The text of every start. `projectId` is the id of the oldest project, `clock` the state of the test clock; null without one.
 * `unused` names the settings whose keys are not keys of the data.
 */
export function bannerOf(
  { api, ops }: Reached,
  config: Pick<Config, "databaseUrl" | "dataDir" | "adminCommand">,
  projectId: string,
  clock: ClockView | null,
  unused: readonly string[],
): string {
  const dataDir = resolve(config.dataDir);
  const isElsewhere = config.databaseUrl === null && dataDir !== resolve(DATA_DIR_DEFAULT);
  const inCheckout = `${isElsewhere ? `DATA_DIR=${quote(dataDir)} ` : ""}npm run --silent admin --`;
  const admin = config.adminCommand === null ? inCheckout : escapeControls(config.adminCommand);
  const ofProject = `--project ${projectId} --environment development`;
  const data = config.databaseUrl === null ? escapeControls(dataDir) : "the database of DATABASE_URL";
  const testClock =
    clock === null
      ? ""
      : `
  TEST CLOCK      it is ${clock.now} here, ${clock.offset_ms / 1_000} s ahead of real time. To put it ahead by a day:
                  curl -sS ${ops}/clock/advance -d '{"by": "1d"}'`;
  return `Jobwheel answers at ${api}. Ctrl-C stops it.${testClock}
  console         ${api}/
  documentation   ${api}/docs
  health          ${ops}/healthz, with /readyz and /metrics
  data            ${data}
  signing secret  ${admin} secret show ${ofProject}
  another key     ${admin} key create ${ofProject}${unused.map(unusedLine).join("")}`;
}

const unusedLine = (setting: string) =>
  `\n  not used        ${setting}: it is no valid key of the data that is there, and only a first project takes it`;

/** Whether it has the echo receiver, to which jobs may be sent. */
const hasEcho = ({ host, allowInsecureTargets }: Pick<Config, "host" | "allowInsecureTargets">) =>
  allowInsecureTargets && isLoopback(host);

/** A path as a word of a shell. */
function quote(path: string): string {
  return /^[\w./+-]+$/.test(path) ? path : `'${escapeControls(path).replaceAll("'", "'\\''")}'`;
}
