import { useState } from "preact/hooks";
import { OLD_SECRET_HOURS } from "../../../../../shared/domain/webhook.ts";
import { usePost } from "../../data/action.ts";
import { useQuery } from "../../data/query.ts";
import { may, type Session } from "../../data/session.ts";
import { Confirm, tell } from "../../ui/dialog.tsx";
import { Card, Loading, ScopeNote, Trouble } from "../../ui/page.tsx";
import { Secret, Time } from "../../ui/small.tsx";

/** The secret with which attempts of jobs are signed. */
export function SigningSecret({ session }: { session: Session }) {
  const { project } = session.client;
  const { data, error, reload } = useQuery("signing secret", (signal) => project.signingSecret({ signal }));
  const [revealed, setRevealed] = useState<string | null>(null);
  const [isAsking, setIsAsking] = useState(false);
  const rotate = usePost(async (options) => {
    const { secret } = await project.rotateSigningSecret(options);
    setRevealed(secret);
    setIsAsking(false);
    tell("The signing secret is rotated.");
    reload();
  });
  return (
    <Card title="Signing secret">
      <p class="note">
        {`Attempts of jobs in ${session.environment} are signed with it, so that your targets can tell them from anybody's.`}
      </p>
      <Trouble error={error} onRetry={reload} />
      {data === undefined ? (
        error === undefined && <Loading what="the secret" />
      ) : (
        <dl class="facts">
          <dt>Secret</dt>
          <dd>
            <code>{data.secret}</code>
          </dd>
          <dt>The one before</dt>
          <dd>
            {data.previous_expires_at === null ? (
              <span class="muted">does not sign</span>
            ) : (
              <>
                {"signs too, until "}
                <Time at={data.previous_expires_at} />
              </>
            )}
          </dd>
        </dl>
      )}
      {revealed !== null && (
        <Secret text={revealed}>This is the new signing secret. It is shown this once.</Secret>
      )}
      {may(session, "project", "write") ? (
        <div>
          <button type="button" class="button" onClick={() => setIsAsking(true)}>
            Rotate the signing secret
          </button>
        </div>
      ) : (
        <ScopeNote session={session} what="rotate it" />
      )}
      {isAsking && (
        <Confirm
          title="Rotate the signing secret?"
          verb="Rotate it"
          action={rotate}
          onClose={() => setIsAsking(false)}
        >
          <p>{`For ${OLD_SECRET_HOURS} hours attempts are signed with both. A secret that is ending from a rotation before ends at once.`}</p>
        </Confirm>
      )}
    </Card>
  );
}
