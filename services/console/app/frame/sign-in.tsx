import { useState } from "preact/hooks";
import { ApiError } from "../../../../shared/client/errors.ts";
import type { Environment } from "../../../../shared/domain/scope.ts";
import { useAction } from "../data/action.ts";
import { addressOf, BASE, goTo, place } from "../data/place.ts";
import { signIn } from "../data/session.ts";
import { Form, TextField } from "../ui/form.tsx";
import { Wheel } from "../ui/icons.tsx";
import { errorText } from "../ui/page.tsx";

/** The page for a visitor without a key. It leads on to the view of the address, or else to the overview. */
export function SignInPage({ environment }: { environment: Environment | null }) {
  return (
    <main class="door" {...(environment && { "data-environment": environment })}>
      <div class="door-card">
        <div class="brand">
          <Wheel />
          Jobwheel
        </div>
        <h1>Sign in</h1>
        {environment !== null && (
          <p>
            This address is in <span class="environment-chip">{environment}</span>. Paste a key of that
            environment.
          </p>
        )}
        <SignInForm environment={environment} />
        <p class="note">
          The key stays in this tab until you close it. It decides the project, the environment and what you
          may do. An operator makes keys with <code>npm run admin -- key create</code>.
        </p>
        <p class="note">
          <a href={`${BASE}docs`}>API documentation</a>
        </p>
      </div>
    </main>
  );
}

/** `onDone` is called once a session is open. */
export function SignInForm({
  environment,
  onDone,
}: {
  environment: Environment | null;
  onDone?: () => void;
}) {
  const [key, setKey] = useState("");
  const action = useAction(async () => {
    const opened = await signIn(key);
    if (environment !== null && opened !== environment) goTo(addressOf(opened, "overview"));
    else if (place.value.environment === null) goTo(addressOf(opened, "overview"), { replace: true });
    onDone?.();
  });
  return (
    <Form class="form" label="Sign in" onSubmit={() => action.run()}>
      <TextField
        label="API key"
        type="password"
        value={key}
        onInput={setKey}
        isMono
        hasFocus
        placeholder={
          environment === "production"
            ? "svc_live_…"
            : environment === "development"
              ? "svc_dev_…"
              : "svc_dev_… or svc_live_…"
        }
        fault={signInFault(action.error)}
      />
      <div>
        <button type="submit" class="button first" disabled={action.isBusy || key.trim() === ""}>
          {action.isBusy ? "Signing in …" : "Sign in"}
        </button>
      </div>
    </Form>
  );
}

function signInFault(error: unknown): string | undefined {
  if (error === undefined) return undefined;
  if (error instanceof ApiError && error.status === 401)
    return "This key is not accepted. It may be mistyped, expired or revoked.";
  if (error instanceof TypeError)
    return "This is no key: keys begin with svc_dev_ or svc_live_ and have no blanks.";
  return errorText(error);
}
