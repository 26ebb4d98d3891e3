import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import { type List, walkList } from "./list.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type ApiKey = ResponseOf<"listKeys">["data"][number];
/** A key with its text. */
export type RevealedApiKey = ResponseOf<"createKey">;
export type DeletedApiKey = ResponseOf<"deleteKey">;
export type NewApiKey = BodyOf<"createKey">;
export type KeyRotation = BodyOf<"rotateKey">;
export type KeyListQuery = QueryOf<"listKeys">;

/** The keys of the project and environment. The client's own key must be of scope `full`. */
export interface Keys {
  /** Only this answer shows the key. */
  create(key: NewApiKey, options?: CreationOptions): Call<RevealedApiKey>;
  list(query?: KeyListQuery, options?: RequestOptions): List<ApiKey>;
  /** Only this answer shows the successor. The key itself works for 24 hours more, unless `overlap_hours` says otherwise. */
  rotate(id: string, rotation?: KeyRotation, options?: CreationOptions): Call<RevealedApiKey>;
  /** Refused as resource_not_found if the key is gone already, even if an earlier try of this same call deleted it. */
  delete(id: string, options?: RequestOptions): Call<DeletedApiKey>;
}

export function createKeys(send: Send): Keys {
  return {
    create: (key, options) =>
      send({ method: "POST", path: "/v2/keys", body: () => JSON.stringify(key), options }),
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/keys", query, options }),
    rotate: (id, rotation = {}, options) =>
      send({ method: "POST", path: `${keyPath(id)}/rotate`, body: () => JSON.stringify(rotation), options }),
    delete: (id, options) => send({ method: "DELETE", path: keyPath(id), options }),
  };
}

function keyPath(id: string): string {
  return `/v2/keys/${encodeURIComponent(id)}`;
}
