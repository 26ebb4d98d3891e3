import { invalidRequest } from "./errors.ts";

/** The versions of the API that this service speaks, oldest first. */
export const API_VERSIONS = ["2026-11-01"] as const;
export type ApiVersion = (typeof API_VERSIONS)[number];

/** The version that new projects are pinned to. */
export const NEWEST_API_VERSION: ApiVersion = API_VERSIONS[API_VERSIONS.length - 1] ?? API_VERSIONS[0];

export function isApiVersion(text: string): text is ApiVersion {
  return (API_VERSIONS as readonly string[]).includes(text);
}

/** The version that a request uses: that of its Service-Version header, else the one that its project is pinned to. */
export function versionOf(header: string | null, pinned: ApiVersion): ApiVersion {
  if (header === null) return pinned;
  if (isApiVersion(header)) return header;
  throw invalidRequest(
    `Service-Version names no version of this API; known are ${API_VERSIONS.join(", ")}.`,
    "Service-Version",
  );
}
