import { may, useSession } from "../../data/session.ts";
import { PageHead, ScopeNote } from "../../ui/page.tsx";
import { ApiKeys } from "./api-keys.tsx";
import { ProjectSettings } from "./project.tsx";
import { SigningSecret } from "./signing-secret.tsx";

/** The page of the API keys, the signing secret and the project's settings. */
export function KeysPage() {
  const session = useSession();
  return (
    <>
      <PageHead title="Keys and settings" />
      <div class="stack">
        {may(session, "keys", "read") ? (
          <ApiKeys session={session} />
        ) : (
          <ScopeNote session={session} what="list or make keys" />
        )}
        <div class="columns">
          <SigningSecret session={session} />
          <ProjectSettings session={session} />
        </div>
      </div>
    </>
  );
}
