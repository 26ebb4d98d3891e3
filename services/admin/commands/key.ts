import { randomBytes } from "node:crypto";
import { timestampOf } from "../../../shared/contract/timestamp.ts";
import { createIdSource, idTimeMs, KEY_PREFIX } from "../../../shared/domain/ids.ts";
import { KEY_SCOPES, makeKey } from "../../../shared/domain/key.ts";
import {
  KEY_LIFE_HOURS_MAX,
  OVERLAP_HOURS_DEFAULT,
  OVERLAP_HOURS_MAX,
} from "../../../shared/domain/key-life.ts";
import { checkName } from "../../../shared/domain/name.ts";
import { ENVIRONMENTS } from "../../../shared/domain/scope.ts";
import { askTime, type Database } from "../../../shared/store/database/database.ts";
import {
  createKey,
  findKey,
  type KeyRow,
  listKeys,
  type NewKey,
  replaceKey,
  revokeKey,
} from "../../../shared/store/resources/keys.ts";
import { makeCause } from "../cause.ts";
import { type Command, parseChoice, parseIdOf, parseInteger, Refusal, table } from "../command.ts";
import { hashKey } from "../create-project.ts";
import { requireProject } from "./project.ts";

const NAME_CHARACTERS_MAX = 80;
const HOUR_MS = 3_600_000;

export const keyCreate: Command = {
  usage: "--project ID --environment ENVIRONMENT [--scope SCOPE] [--name NAME] [--expires-in-hours HOURS]",
  options: ["project", "environment", "scope", "name", "expires-in-hours"],
  async run(input, { db, operator }) {
    const environment = parseChoice(input.required("environment"), "--environment", ENVIRONMENTS);
    const scope = parseChoice(input.option("scope") ?? "full", "--scope", KEY_SCOPES);
    const name = input.option("name") ?? null;
    if (name !== null) checkName(name, "--name", NAME_CHARACTERS_MAX);
    const hours = input.option("expires-in-hours");
    const lifeMs = hours === undefined ? null : parseHours(hours) * HOUR_MS;
    const project = await requireProject(db, input.required("project"), "--project");

    const now = await askTime(db);
    const expiresAt = lifeMs === null ? null : new Date(now + lifeMs);
    const made = make({ projectNo: project.no, environment, scope, name, expiresAt }, now);
    await createKey(db, made.row, await makeCause({ db, operator }));
    return show(made);
  },
};

export const keyList: Command = {
  usage: "--project ID",
  options: ["project"],
  async run(input, { db }) {
    const project = await requireProject(db, input.required("project"), "--project");
    const now = await askTime(db);
    const keys = (await listKeys(db, project.no)).map((key) => ({
      id: key.id,
      environment: key.environment,
      scope: key.scope,
      name: key.name,
      status: statusOf(key, now),
      created_at: timestampOf(idTimeMs(key.id)),
      expires_at: instantOf(key.expiresAt),
      revoked_at: instantOf(key.revokedAt),
      last_used_at: instantOf(key.lastUsedAt),
    }));
    return {
      json: { data: keys },
      text: table([
        ["ID", "ENVIRONMENT", "SCOPE", "STATUS", "EXPIRES", "LAST USED", "NAME"],
        ...keys.map((key) => [
          key.id,
          key.environment,
          key.scope,
          key.status,
          key.expires_at ?? "never",
          key.last_used_at ?? "never",
          key.name ?? "",
        ]),
      ]),
    };
  },
};

export const keyRevoke: Command = {
  usage: "KEY_ID",
  operand: "KEY_ID",
  async run(input, { db, operator }) {
    const key = await requireKey(db, input.operand);
    // To revoke a key twice is no error.
    await revokeKey(db, key.id, await makeCause({ db, operator }));
    return { json: { id: key.id, revoked: true }, text: `${key.id} is revoked` };
  },
};

export const keyRotate: Command = {
  usage: "KEY_ID [--overlap-hours HOURS]",
  operand: "KEY_ID",
  options: ["overlap-hours"],
  async run(input, { db, operator }) {
    const text = input.option("overlap-hours");
    const overlapHours =
      text === undefined
        ? OVERLAP_HOURS_DEFAULT
        : parseInteger(text, "--overlap-hours", 0, OVERLAP_HOURS_MAX);
    const key = await requireKey(db, input.operand);
    const now = await askTime(db);
    const status = statusOf(key, now);
    if (status !== "active") throw new Refusal(`${key.id} is ${status}: create a new key instead`);

    const { projectNo, environment, scope, name, expiresAt } = key;
    // The successor ends when the key would have ended: a rotation does not prolong a key's life.
    const made = make({ projectNo, environment, scope, name, expiresAt }, now);
    await replaceKey(db, key.id, made.row, overlapHours, await makeCause({ db, operator }));
    return show(made);
  },
};

interface MadeKey {
  row: NewKey;
  key: string;
}

function make(facts: Omit<NewKey, "id" | "hash">, now: number): MadeKey {
  const key = makeKey(facts.environment, randomBytes);
  const id = createIdSource(randomBytes).next(KEY_PREFIX, now);
  return { row: { ...facts, id, hash: hashKey(key) }, key };
}

function show({ row, key }: MadeKey) {
  const { id, scope, environment } = row;
  const expiresAt = instantOf(row.expiresAt);
  return {
    json: { id, key, scope, expires_at: expiresAt },
    text: table([
      ["id", id],
      ["key (shown this once)", key],
      ["environment", environment],
      ["scope", scope],
      ["expires", expiresAt ?? "never"],
    ]),
  };
}

async function requireKey(db: Database, text: string): Promise<KeyRow> {
  const id = parseIdOf(KEY_PREFIX, text, "KEY_ID");
  const key = await findKey(db, id);
  if (key === null) throw new Refusal(`there is no key ${id}`);
  return key;
}

function statusOf(key: KeyRow, now: number): "active" | "revoked" | "expired" {
  if (key.revokedAt !== null) return "revoked";
  return key.expiresAt !== null && key.expiresAt.getTime() <= now ? "expired" : "active";
}

/** Hours may have a fraction here, for a key that is to serve for minutes. */
function parseHours(text: string): number {
  const hours = /^[0-9]{1,5}(\.[0-9]{1,6})?$/.test(text) ? Number(text) : Number.NaN;
  if (hours > 0 && hours <= KEY_LIFE_HOURS_MAX) return hours;
  throw new Refusal(`--expires-in-hours must be a number above 0, at most ${KEY_LIFE_HOURS_MAX}`);
}

function instantOf(date: Date | null): string | null {
  return date === null ? null : timestampOf(date.getTime());
}
