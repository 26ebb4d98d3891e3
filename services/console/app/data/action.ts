import { useRef, useState } from "preact/hooks";
import { ApiError } from "../../../../shared/client/errors.ts";

/** Something that a visitor does by a button or a form. */
export interface Action<Given extends unknown[]> {
  run(...given: Given): void;
  isBusy: boolean;
  /** Why it failed; undefined if it did not, and while it is tried again. */
  error: unknown;
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
    clear: () => setState({ isBusy: false, error: undefined }),
  };
}

/**
 * The Idempotency-Key of a form. As long as what is sent stays the same it stays the same too, so that a form that is sent
 * again after a lost answer happens once.
 */
export function useIdempotencyKey(): (sent: unknown) => string {
  const last = useRef({ sent: "", key: "" });
  return (sent) => {
    const text = JSON.stringify(sent);
    if (last.current.key === "" || last.current.sent !== text) last.current = { sent: text, key: makeKey() };
    return last.current.key;
  };
}

/**
 * What a button does by one POST, always the same. `act` gets an Idempotency-Key, which stays until it has succeeded, so that a
 * click after a lost answer neither happens twice nor loses a secret that was made.
 */
export function usePost(act: (options: { idempotencyKey: string }) => Promise<unknown>): Action<[]> {
  const key = useRef<string | null>(null);
  return useAction(async () => {
    key.current ??= makeKey();
    await act({ idempotencyKey: key.current });
    key.current = null;
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
