import { type Static, Type } from "@sinclair/typebox";
import { OLD_SECRET_HOURS } from "../domain/webhook.ts";
import { Timestamp, timestampOrNull } from "./timestamp.ts";
import { MaskedSecret, revealedSecret } from "./webhook.ts";

const closed = { additionalProperties: false } as const;

const previous_expires_at = Type.Union([Timestamp, Type.Null()], {
  description: `Until when the secret before it signs as well: ${OLD_SECRET_HOURS} hours from its rotation; null where none does.`,
});

export const SigningSecret = Type.Object(
  { secret: MaskedSecret, previous_expires_at },
  { ...closed, title: "SigningSecret", description: "The secret with which attempts of jobs are signed." },
);
export const RevealedSigningSecret = Type.Object(
  {
    secret: revealedSecret("What attempts of jobs are signed with. It is shown this once."),
    previous_expires_at,
  },
  { ...closed, title: "RevealedSigningSecret", description: "The new secret of the environment." },
);

/** `secret` as it is to be shown; the instant is milliseconds since 1970. */
export function viewSigningSecret(
  secret: string,
  previousExpiresAt: number | null,
): Static<typeof SigningSecret> {
  return { secret, previous_expires_at: timestampOrNull(previousExpiresAt) };
}
