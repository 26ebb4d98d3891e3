import { useRef, useState } from "preact/hooks";
import { ApiError } from "../../../../shared/client/errors.ts";

/** Something that a visitor does by a button or a form. */
export interface Action<Given extends unknown[]> {
  run(...given: Given): void;
  isBusy: boolean;
  /** Why it failed; undefined if it did not, and while it is tried again. */
  error: unknown;
  /** Forgets the error. A call that is under way goes on, and stays shown. */
  clear(): void;
}

/** One call at a time: a second click while it is under way does nothing. */
export function useAction<Given extends unknown[]>(
  act: (...given: Given) => Promise<unknown>,
): Action<Given> {
  const [state, setState] = useState<{ isBusy: boolean; error: unknown }>({
    isBusy: false,
    error: undefined,
  });
  const isBusy = useRef(false);
  return {
    ...state,
    run(...given) {
      if (isBusy.current) return;
      isBusy.current = true;
      setState({ isBusy: true, error: undefined });
      act(...given).then(
        () => {
          isBusy.current = false;
          setState({ isBusy: false, error: undefined });
        },
        (error: unknown) => {
          isBusy.current = false;
          setState({ isBusy: false, error });
        },
      );
    },
    clear: () => setState(({ isBusy }) => ({ isBusy, error: undefined })),
  };
}

/**
 * An action that sends a POST. `act` gets an Idempotency-Key, which stays the same until an answer has said that the action is
 * done. So an action that is repeated after a lost answer happens once, and a secret that it made is not lost. A change of `sent`,
 * such as the texts of a form, makes it another action with another key.
 */
export function usePost<Given extends unknown[]>(
  act: (options: { idempotencyKey: string }, ...given: Given) => Promise<unknown>,
  sent: unknown = null,
): Action<Given> {
  const pending = useRef<{ text: string; key: string } | null>(null);
  return useAction(async (...given) => {
    const text = JSON.stringify([sent, given]);
    if (pending.current?.text !== text) pending.current = { text, key: makeKey() };
    await act({ idempotencyKey: pending.current.key }, ...given);
    pending.current = null;
  });
}

/** `crypto.randomUUID` is missing on pages without TLS, as in a private network. */
function makeKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}

/** The message of the error, if it is about this field of the form. */
export function faultOf(error: unknown, param: string): string | undefined {
  if (!(error instanceof ApiError) || error.param === null) return undefined;
  return error.param === param || error.param.startsWith(`${param}.`) || error.param.startsWith(`${param}[`)
    ? error.message
    : undefined;
}
