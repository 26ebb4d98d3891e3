import { type Static, Type } from "@sinclair/typebox";
import { idTimeMs, KEY_PREFIX } from "../domain/ids.ts";
import { KEY_SCOPES, type KeyScope } from "../domain/key.ts";
import {
  KEY_LIFE_HOURS_MAX,
  KEY_NAME_CHARACTERS_MAX,
  OVERLAP_HOURS_DEFAULT,
  OVERLAP_HOURS_MAX,
} from "../domain/key-life.ts";
import { checkName } from "../domain/name.ts";
import { parseQuery, readPage } from "../domain/page.ts";
import { idOf } from "./id.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOf, timestampOrNull } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

export const KeyId = idOf(KEY_PREFIX, "The id of an API key.");

const Scope = wordOf(
  KEY_SCOPES,
  "What the key may do: everything, read everything, or everything with jobs, bulk operations, flows and runs and nothing else.",
  "KeyScope",
);
const Name = Type.String({
  documented: { pattern: "\\S", maxLength: KEY_NAME_CHARACTERS_MAX },
  description: "A label.",
  examples: ["deployments"],
});

export const NewKeyRequest = Type.Object(
  {
    name: Type.Optional(Name),
    scope: Scope,
    expires_in_hours: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: KEY_LIFE_HOURS_MAX,
        description:
          "When the key expires: not after the key that asks. If it is left out, it expires with the key that asks.",
      }),
    ),
  },
  { ...closed, title: "NewKeyRequest" },
);

export const KeyRotationRequest = Type.Object(
  {
    overlap_hours: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: OVERLAP_HOURS_MAX,
        default: OVERLAP_HOURS_DEFAULT,
        description: "For how long the key goes on to work beside its successor.",
      }),
    ),
  },
  { ...closed, title: "KeyRotationRequest" },
);

const keyFields = {
  id: KeyId,
  name: Type.Union([Name, Type.Null()]),
  scope: Scope,
  created_at: Timestamp,
  last_used_at: Type.Union([Timestamp, Type.Null()], {
    description: "When it was last used, up to a minute late; null if it never was.",
  }),
  expires_at: Type.Union([Timestamp, Type.Null()], { description: "Null if it does not expire." }),
};

export const ApiKey = Type.Object(keyFields, {
  ...closed,
  title: "ApiKey",
  description: "A key of the project and environment, without its text.",
});
export const RevealedApiKey = Type.Object(
  {
    ...keyFields,
    key: Type.String({
      pattern: "^svc_(?:dev|live)_[0-9A-Za-z]{38}$",
      description: "What requests carry as `Authorization: Bearer`. It is shown this once.",
      // The check characters of the example are wrong, so that nobody takes it for a key.
      examples: [`svc_live_${"0".repeat(38)}`],
    }),
  },
  { ...closed, title: "RevealedApiKey", description: "A new key with its text." },
);
export const ApiKeyList = listOf(ApiKey, "ApiKeyList");
export const DeletedApiKey = Type.Object(
  { id: KeyId, deleted: Type.Literal(true) },
  { ...closed, title: "DeletedApiKey" },
);

export const KeyListParameters = Type.Object(pageParameters);

/** The body of POST /v2/keys; null for a field that it leaves out. Throws ApiError. */
export function readNewKey(value: unknown): { name: string | null; scope: KeyScope; hours: number | null } {
  const { name, scope, expires_in_hours: hours } = validateNew(value);
  if (name !== undefined) checkName(name, "name", KEY_NAME_CHARACTERS_MAX);
  return { name: name ?? null, scope, hours: hours ?? null };
}

/** The overlap that the body of POST /v2/keys/{id}/rotate asks for. `value` is undefined without a body. Throws ApiError. */
export function readOverlapHours(value: unknown): number {
  return (value === undefined ? {} : validateRotation(value)).overlap_hours ?? OVERLAP_HOURS_DEFAULT;
}

/** The query string of GET /v2/keys. Throws ApiError. */
export function readKeyListQuery(query: string) {
  return readPage(parseQuery(query, namesOf(KeyListParameters)));
}

/** A key as the store knows it. Instants are milliseconds since 1970. */
export interface KeyFacts {
  id: string;
  name: string | null;
  scope: KeyScope;
  lastUsedAt: number | null;
  expiresAt: number | null;
}

export function viewKey(key: KeyFacts): Static<typeof ApiKey> {
  return {
    id: key.id,
    name: key.name,
    scope: key.scope,
    created_at: timestampOf(idTimeMs(key.id)),
    last_used_at: timestampOrNull(key.lastUsedAt),
    expires_at: timestampOrNull(key.expiresAt),
  };
}

/** The key with its text, which is shown once. */
export function viewRevealedKey(facts: KeyFacts, key: string): Static<typeof RevealedApiKey> {
  return { ...viewKey(facts), key };
}

const validateNew = validatorOf(NewKeyRequest);
const validateRotation = validatorOf(KeyRotationRequest);
